#include "experiments/training/optimizer.hpp"

#include <ATen/ops/_fused_adamw.h>

#include <algorithm>

namespace lethe {

using torch::Tensor;
using Range = FlatParameters::Range;

namespace {

Tensor part(const Tensor& buffer, int64_t begin, int64_t end) { return buffer.narrow(0, begin, end - begin); }

int64_t entries(const std::vector<Range>& ranges) {
  int64_t sum = 0;
  for (const Range& range : ranges) sum += range.end - range.begin;
  return sum;
}

}  // namespace

AdamW::AdamW(FlatParameters& parameters, const TrainingConfig& config, const GradientExchange* exchange)
    : parameters_(parameters), config_(config), exchange_(exchange),
      own_(exchange ? exchange->own() : std::vector<Range>{{0, parameters.master.size(0)}}),
      first_(torch::zeros({entries(own_)}, parameters.master.options())), second_(torch::zeros_like(first_)),
      steps_(torch::zeros({}, parameters.master.options())), groups_{
                                                                 group_of(0, parameters.matrices, config.weight_decay),
                                                                 group_of(parameters.matrices,
                                                                          parameters.master.size(0), 0)} {}

AdamW::Group AdamW::group_of(int64_t begin, int64_t end, double decay) const {
  Group group{decay, {}, {}, {}, {}, {}};
  int64_t place = 0;  // in the moments
  for (const Range& own : own_) {
    const int64_t from = std::max(begin, own.begin), to = std::min(end, own.end);
    if (from < to) {
      const int64_t moment = place + from - own.begin;
      group.weights.push_back(part(parameters_.master, from, to));
      group.gradients.push_back(part(parameters_.gradient, from, to));
      group.first.push_back(part(first_, moment, moment + to - from));
      group.second.push_back(part(second_, moment, moment + to - from));
      group.steps.push_back(steps_);
    }
    place += own.end - own.begin;
  }
  return group;
}

Tensor AdamW::gradient_norm() const {
  // Rows of 64 entries in float32, their sum in float64: whatever the ranks' shares, the same to 1e-8.
  std::vector<Tensor> norms;
  for (const Range& own : own_)
    norms.push_back(torch::linalg_vector_norm(
        part(parameters_.gradient, own.begin, own.end).view({-1, FlatParameters::kAlignment}), 2, 1));
  const Tensor squares = torch::cat(norms).to(torch::kFloat64).square_().sum();
  if (exchange_ && exchange_->is_sharded()) exchange_->world().sum(squares).wait();
  return squares.sqrt();
}

Tensor AdamW::step(double learning_rate, const Tensor& loss, double gradient_scale) {
  const torch::NoGradGuard no_gradient;
  const Tensor norm = gradient_norm() / gradient_scale;
  const Tensor is_finite = torch::isfinite(norm).logical_and(torch::isfinite(loss)).to(torch::kFloat32);
  const Tensor divisor = (((norm + 1e-6) / config_.clip_norm).clamp_min(1) * gradient_scale).to(torch::kFloat32),
               skipped = 1 - is_finite;
  steps_ += is_finite;
  for (const Group& group : groups_) {
    if (group.weights.empty()) continue;
    at::_fused_adamw_(group.weights, group.gradients, group.first, group.second, {}, group.steps, learning_rate,
                      config_.beta1, config_.beta2, group.decay, config_.epsilon, false, false, divisor, skipped);
  }
  if (exchange_) exchange_->gather(parameters_.master);
  parameters_.refresh();
  return norm;
}

Tensor AdamW::gathered(const Tensor& own) const {
  if (!exchange_ || !exchange_->is_sharded()) return own;
  Tensor all = torch::zeros_like(parameters_.master);
  int64_t place = 0;
  for (const Range& range : own_) {
    const int64_t length = range.end - range.begin;
    part(all, range.begin, range.end).copy_(part(own, place, place + length));
    place += length;
  }
  exchange_->gather(all);
  return all;
}

AdamW::Moments AdamW::moments() const { return {gathered(first_), gathered(second_)}; }

void AdamW::set_moments(const Moments& moments) {
  int64_t place = 0;
  for (const Range& range : own_) {
    const int64_t length = range.end - range.begin;
    part(first_, place, place + length).copy_(part(moments.first, range.begin, range.end));
    part(second_, place, place + length).copy_(part(moments.second, range.begin, range.end));
    place += length;
  }
}

}  // namespace lethe
