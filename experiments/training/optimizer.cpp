#include "experiments/training/optimizer.hpp"

#include <ATen/ops/_fused_adamw.h>

namespace lethe {

using torch::Tensor;

AdamW::AdamW(FlatParameters& parameters, const TrainingConfig& config)
    : parameters_(parameters), config_(config), first_(torch::zeros_like(parameters.master)),
      second_(torch::zeros_like(parameters.master)), steps_(torch::zeros({}, parameters.master.options())) {}

Tensor AdamW::step(double learning_rate, const Tensor& loss) {
  const torch::NoGradGuard no_gradient;
  const Tensor norm = torch::linalg_vector_norm(parameters_.gradient);
  const Tensor is_finite = torch::isfinite(norm).logical_and(torch::isfinite(loss)).to(torch::kFloat32);
  const Tensor divisor = ((norm + 1e-6) / config_.clip_norm).clamp_min(1), skipped = 1 - is_finite;
  steps_ += is_finite;
  const auto update = [&](int64_t begin, int64_t end, double decay) {
    if (begin == end) return;
    const auto part = [&](const Tensor& buffer) { return std::vector<Tensor>{buffer.narrow(0, begin, end - begin)}; };
    at::_fused_adamw_(part(parameters_.master), part(parameters_.gradient), part(first_), part(second_), {}, {steps_},
                      learning_rate, config_.beta1, config_.beta2, decay, config_.epsilon, false, false, divisor,
                      skipped);
  };
  update(0, parameters_.matrices, config_.weight_decay);
  update(parameters_.matrices, parameters_.master.size(0), 0);
  parameters_.refresh();
  return norm;
}

AdamW::Moments AdamW::moments_of(const Tensor& parameter) const {
  const auto view_of = [&](const Tensor& buffer) {
    return buffer.as_strided(parameter.sizes(), parameter.strides(), parameter.storage_offset());
  };
  return {view_of(first_), view_of(second_)};
}

}  // namespace lethe
