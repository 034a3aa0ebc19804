#include "experiments/models/cross_entropy.hpp"

#include <torch/autograd.h>

#include <algorithm>

#include "experiments/models/layers.hpp"

namespace lethe {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Calls visit(first row, rows) for pieces of at most `at_once` rows.
template <class Visitor>
void for_each_chunk(int64_t rows, int64_t at_once, Visitor&& visit) {
  for (int64_t first = 0; first < rows; first += at_once) visit(first, std::min(at_once, rows - first));
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight, const Tensor& labels,
                        int64_t at_once) {
    const auto wide = accumulation_dtype(hidden.scalar_type());
    const Tensor log_normalizer = torch::empty({hidden.size(0)}, hidden.options().dtype(wide));
    const Tensor loss = torch::empty_like(log_normalizer);
    for_each_chunk(hidden.size(0), at_once, [&](int64_t first, int64_t rows) {
      const Tensor logits = torch::mm(hidden.narrow(0, first, rows), weight.t()).to(wide);
      const Tensor normalizer = torch::logsumexp(logits, 1);
      const Tensor picked = logits.gather(1, labels.narrow(0, first, rows).unsqueeze(1)).squeeze(1);
      log_normalizer.narrow(0, first, rows).copy_(normalizer);
      loss.narrow(0, first, rows).copy_(normalizer - picked);
    });
    context->saved_data["at_once"] = at_once;
    context->save_for_backward({hidden, weight, labels, log_normalizer});
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const int64_t at_once = context->saved_data["at_once"].toInt();
    const Tensor &hidden = saved[0], &weight = saved[1], &labels = saved[2], &log_normalizer = saved[3];
    const Tensor loss_gradient = gradients[0].unsqueeze(1);
    const Tensor hidden_gradient = torch::empty_like(hidden);
    const Tensor weight_gradient = torch::zeros(weight.sizes(), log_normalizer.options());
    for_each_chunk(hidden.size(0), at_once, [&](int64_t first, int64_t rows) {
      const Tensor chunk = hidden.narrow(0, first, rows), scale = loss_gradient.narrow(0, first, rows);
      // softmax − one-hot, times the gradient of the loss
      Tensor logits_gradient = torch::mm(chunk, weight.t()).to(log_normalizer.scalar_type());
      logits_gradient.sub_(log_normalizer.narrow(0, first, rows).unsqueeze(1)).exp_().mul_(scale);
      logits_gradient.scatter_add_(1, labels.narrow(0, first, rows).unsqueeze(1), -scale);
      logits_gradient = logits_gradient.to(hidden.scalar_type());
      hidden_gradient.narrow(0, first, rows).copy_(torch::mm(logits_gradient, weight));
      weight_gradient.add_(torch::mm(logits_gradient.t(), chunk));
    });
    return {hidden_gradient, weight_gradient.to(weight.scalar_type()), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& labels, int64_t chunk) {
  return CrossEntropy::apply(hidden, weight, labels, std::max<int64_t>(1, chunk / weight.size(0)));
}

}  // namespace lethe
