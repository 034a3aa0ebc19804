#include "experiments/models/mixers/parts/rotations.hpp"

#include <cmath>

namespace lethe {

void RotationConfig::check() const {
  expect(rope_base > 0 && std::isfinite(rope_base), "rope_base", "> 0 and finite", std::to_string(rope_base));
}

const Rotation& Rotations::of(const torch::Tensor& x, int64_t dim, double base) {
  Rotation& entry = made_[{dim, base}];
  if (!entry.cosine.defined())
    entry = rotation(x.size(1), dim, base, x.options().dtype(accumulation_dtype(x.scalar_type())));
  return entry;
}

}  // namespace lethe
