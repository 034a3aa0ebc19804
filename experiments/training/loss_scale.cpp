#include "experiments/training/loss_scale.hpp"

#include <cmath>

namespace lethe {

LossScale::LossScale(double first) : is_on_(first > 0), state_{is_on_ ? std::ilogb(first) : 0, 0} {}

double LossScale::value() const { return std::ldexp(1.0, static_cast<int>(state_.exponent)); }

void LossScale::step_kept() {
  if (!is_on_ || ++state_.kept < kKept) return;
  state_ = {state_.exponent + 1, 0};
}

bool LossScale::halve() {
  if (state_.exponent == 0) return false;
  state_ = {state_.exponent - 1, 0};
  return true;
}

}  // namespace lethe
