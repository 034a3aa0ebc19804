#include "experiments/models/mixers/parts/time_step.hpp"

#include <cmath>
#include <utility>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

void draw_step_bias(Tensor& bias, const torch::Generator& generator) {
  constexpr double kLeast = 1e-3, kMost = 0.1, kFloor = 1e-4;
  const Tensor share = torch::rand(bias.sizes(), generator, torch::dtype(torch::kFloat64));
  const Tensor step = (std::log(kLeast) + share * std::log(kMost / kLeast)).exp().clamp_min(kFloor);
  bias.copy_(step + torch::log(-torch::expm1(-step)));  // softplus⁻¹
}

}  // namespace

TimeStep::TimeStep(const Weights& weights, int64_t heads, Initial rates)
    : bias(weights.parameter("dt_bias", {heads}, draw_step_bias)),
      log_rate(weights.parameter("A_log", {heads}, std::move(rates))) {}

TimeStep::Steps TimeStep::of(const Tensor& logits) const {
  const torch::Dtype wide = accumulation_dtype(logits.scalar_type());
  const Tensor size = torch::softplus(logits.to(wide) + bias.to(wide));
  return {size, -log_rate.to(wide).exp() * size};
}

}  // namespace lethe
