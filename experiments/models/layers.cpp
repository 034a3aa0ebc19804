#include "experiments/models/layers.hpp"

#include <torch/types.h>

namespace lethe {

Rotation rotation(int64_t length, int64_t head_dim, double base, const torch::TensorOptions& options) {
  const auto wide = options.dtype(torch::kFloat64);
  const torch::Tensor exponent = torch::arange(0, head_dim, 2, wide) / static_cast<double>(head_dim);
  const torch::Tensor angle = torch::outer(torch::arange(length, wide), torch::pow(base, -exponent)).unsqueeze(1);
  return {angle.cos().to(options), angle.sin().to(options)};
}

torch::Tensor rotate(const torch::Tensor& x, const Rotation& rotation) {
  const torch::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
  const auto halves = wide.chunk(2, -1);
  return torch::cat({halves[0] * rotation.cosine - halves[1] * rotation.sine,
                     halves[1] * rotation.cosine + halves[0] * rotation.sine},
                    -1)
      .to(x.scalar_type());
}

}  // namespace lethe
