#include "experiments/models/layers.hpp"

#include <torch/types.h>

namespace lethe {

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double epsilon, torch::Dtype dtype) {
  const torch::Tensor wide = x.to(accumulation_dtype(x.scalar_type()));
  return (wide * (wide.square().mean(-1, true) + epsilon).rsqrt() * weight).to(dtype);
}

torch::Tensor shift_by_one(const torch::Tensor& u, const torch::Tensor& logit) {
  const torch::Dtype wide_dtype = accumulation_dtype(u.scalar_type());
  const torch::Tensor wide = u.to(wide_dtype);
  const torch::Tensor alpha = logit.to(wide_dtype).sigmoid().unsqueeze(-1);          // [B,T,H,1]
  const torch::Tensor previous = torch::constant_pad_nd(wide, {0, 0, 0, 0, 1, -1});  // u_{t−1}
  return torch::lerp(wide, previous, alpha).to(u.scalar_type());
}

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
