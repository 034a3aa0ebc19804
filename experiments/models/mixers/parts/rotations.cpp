#include "experiments/models/mixers/parts/rotations.hpp"

#include <cmath>

namespace lethe {

void RotationConfig::check() const {
  expect(rope_base > 0 && std::isfinite(rope_base), "rope_base", "> 0 and finite", std::to_string(rope_base));
}

Rotation Rotations::of(const torch::Tensor& x, int64_t dim, double base, int64_t first) {
  const int64_t length = packed ? packed->longest : first + x.size(1);
  const auto options = x.options().dtype(accumulation_dtype(x.scalar_type()));
  Rotation& entry = made_[{dim, base}];
  const torch::Tensor& made = entry.cosine;
  if (!made.defined() || made.size(0) < length || made.dtype() != options.dtype() || made.device() != options.device())
    entry = rotation(length, dim, base, options.requires_grad(false));
  if (packed) return {entry.cosine.index_select(0, packed->position), entry.sine.index_select(0, packed->position)};
  return {entry.cosine.narrow(0, first, x.size(1)), entry.sine.narrow(0, first, x.size(1))};
}

}  // namespace lethe
