#pragma once
// An output head with its loss: a random one, and its definition in float64.

#include <ATen/Functions.h>

#include <cmath>

#include "optimized/torch/linear_cross_entropy.hpp"

namespace lethe {

struct OutputHead {
  at::Tensor hidden, weight, labels;  // [N,d], [Vp,d], [N]
  int64_t vocabulary;
  double scale = 0.5;
};

/// Logits of deviation 2; every other label is the most probable token. The weight's rows past the vocabulary are as large as the others: nothing may
/// see them.
inline OutputHead random_output_head(int64_t rows, int64_t width, int64_t vocabulary, int64_t padded,
                                     at::ScalarType dtype, at::Device device = at::kCPU) {
  const at::Tensor hidden = at::randn({rows, width}).to(dtype);
  const at::Tensor weight = at::randn({padded, width}).mul(2 / std::sqrt(width)).to(dtype);
  at::Tensor labels = at::randint(vocabulary, {rows}, at::kLong);
  const at::Tensor logits = at::mm(hidden.to(at::kDouble), weight.narrow(0, 0, vocabulary).to(at::kDouble).t());
  labels.slice(0, 0, rows, 2).copy_(logits.argmax(1).slice(0, 0, rows, 2));
  return {hidden.to(device), weight.to(device), labels.to(device), vocabulary};
}

struct OutputHeadResult : LinearCrossEntropy {
  at::Tensor weight_gradient;
};

/// By the formulas in float64, on the CPU.
inline OutputHeadResult definition_of(const OutputHead& head) {
  const at::Tensor hidden = head.hidden.cpu().to(at::kDouble), weight = head.weight.cpu().to(at::kDouble);
  const at::Tensor labels = head.labels.cpu().unsqueeze(1);
  const at::Tensor logits = at::mm(hidden, weight.t());
  const at::Tensor seen = logits.narrow(1, 0, head.vocabulary);
  at::Tensor gradient = at::zeros_like(logits);
  gradient.narrow(1, 0, head.vocabulary).copy_(seen.softmax(1));
  gradient.scatter_add_(1, labels, at::full({hidden.size(0), 1}, -1, at::kDouble)).mul_(head.scale);
  OutputHeadResult result;
  result.losses = seen.log_softmax(1).gather(1, labels).squeeze(1).neg();
  result.correct = seen.argmax(1).eq(labels.squeeze(1));
  result.grad_hidden = at::mm(gradient, weight);
  result.weight_gradient = at::mm(gradient.t(), hidden);
  return result;
}

/// By the function, added to a weight gradient of zeros.
inline OutputHeadResult result_of(const OutputHead& head, int64_t rows_at_once = 0) {
  const at::ScalarType wide = head.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor weight_gradient = at::zeros(head.weight.sizes(), head.weight.options().dtype(wide));
  const auto found = linear_cross_entropy_with_gradients(head.hidden, head.weight, head.labels, head.vocabulary,
                                                         head.scale, weight_gradient, rows_at_once);
  return {found, weight_gradient};
}

/// ‖found − expected‖ / ‖expected‖
inline double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor wide = expected.cpu().to(at::kDouble);
  return found.cpu().to(at::kDouble).sub(wide).norm().div(wide.norm()).item<double>();
}

}  // namespace lethe
