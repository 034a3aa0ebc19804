#include "experiments/models/mixers/parts/features.hpp"

#include <cmath>
#include <vector>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

Tensor widened(const Tensor& u) { return u.to(accumulation_dtype(u.scalar_type())); }

double root_of_count(const Tensor& directions) { return std::sqrt(static_cast<double>(directions.size(0))); }

}  // namespace

Tensor elu_plus_one(const Tensor& u) {
  const Tensor wide = widened(u);
  return wide.relu() + wide.clamp_max(0).exp();  // one term is constant on either side of zero
}

Tensor sum_normalized(const Tensor& features, double epsilon) {
  const Tensor wide = widened(features);
  return wide / (wide.sum(-1, true) + epsilon);
}

Tensor dpfp(const Tensor& u, int64_t nu) {
  const Tensor wide = widened(u), r = torch::cat({wide, -wide}, -1).relu();
  std::vector<Tensor> products;
  for (int64_t n = 1; n <= nu; ++n) products.push_back(r * r.roll(-n, -1));
  return torch::cat(products, -1);
}

Tensor positive_random(const Tensor& u, const Tensor& directions) {
  const Tensor s = widened(u) * std::pow(static_cast<double>(u.size(-1)), -0.25);
  const Tensor exponents = torch::linear(s, directions.to(s.dtype())) - 0.5 * s.square().sum(-1, true);
  return exponents.exp() / root_of_count(directions);
}

Tensor random_fourier(const Tensor& u, const Tensor& directions) {
  constexpr double kLeastSquare = 1e-20;  // added to |u|², against a division by zero
  const Tensor wide = widened(u), s = wide * (wide.square().sum(-1, true) + kLeastSquare).rsqrt();
  const Tensor angles = torch::linear(s, directions.to(s.dtype()));
  return torch::cat({angles.sin(), angles.cos()}, -1) / root_of_count(directions);
}

}  // namespace lethe
