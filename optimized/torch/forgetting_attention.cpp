// The operators as Torch sees them: schema, derivative, shapes. The arithmetic is two internal operators, forward and backward,
// which each device implements (dispatch keys CPU and CUDA); derivative and shapes are written once in terms of those.
#include "optimized/torch/forgetting_attention.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "optimized/torch/arguments.hpp"

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
// values, log_normalizer, visited_pairs, boundary, residual
using ForwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;  // ∂query, ∂key, ∂value, ∂log_forget

ForwardResult call_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_forget,
                           double scale, std::optional<double> log_pruning_tolerance, const OptionalTensor& logit_bound,
                           bool keep_residual) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_forgetting_attention_forward", "")
                             .typed<ForwardResult(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                                                  std::optional<double>, const OptionalTensor&, bool)>();
  return op.call(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound, keep_residual);
}

BackwardResult call_backward(const Tensor& grad_values, const Tensor& query, const Tensor& key, const Tensor& value,
                             const Tensor& log_forget, const Tensor& values, const Tensor& residual,
                             const Tensor& log_normalizer, const Tensor& boundary, double scale) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("lethe::_forgetting_attention_backward", "")
          .typed<BackwardResult(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                const Tensor&, const Tensor&, const Tensor&, const Tensor&, double)>();
  return op.call(grad_values, query, key, value, log_forget, values, residual, log_normalizer, boundary, scale);
}

struct Derivative : torch::autograd::Function<Derivative> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const Tensor& query,
                                                const Tensor& key, const Tensor& value, const Tensor& log_forget,
                                                double scale, std::optional<double> log_pruning_tolerance,
                                                const OptionalTensor& logit_bound, bool keep_residual) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [values, log_normalizer, visited_pairs, boundary, residual] =
        call_forward(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound, keep_residual);
    context->save_for_backward({query, key, value, log_forget, values, residual, log_normalizer, boundary});
    context->saved_data["scale"] = scale;
    context->mark_non_differentiable({log_normalizer, visited_pairs, boundary, residual});
    context->set_materialize_grads(false);  // else zeros for those, some as large as the values
    return {values, log_normalizer, visited_pairs, boundary, residual};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (!gradients[0].defined()) return torch::autograd::variable_list(8);  // as many as apply() takes
    const auto saved = context->get_saved_variables();
    auto [query, key, value, log_forget] =
        call_backward(gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6], saved[7],
                      context->saved_data["scale"].toDouble());
    return {query, key, value, log_forget, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

ForwardResult differentiable_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const Tensor& log_forget, double scale,
                                     std::optional<double> log_pruning_tolerance, const OptionalTensor& logit_bound,
                                     bool keep_residual) {
  const bool differentiated = at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() ||
                                                             value.requires_grad() || log_forget.requires_grad());
  const auto outputs = Derivative::apply(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound,
                                         keep_residual || differentiated);
  return {outputs[0], outputs[1], outputs[2], outputs[3], outputs[4]};
}

ForwardResult forward_shapes(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_forget,
                             double scale, std::optional<double> log_pruning_tolerance,
                             const OptionalTensor& logit_bound, bool keep_residual) {
  check_forward_arguments(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound);
  const c10::SymInt batch = query.sym_size(0), length = query.sym_size(1), heads = query.sym_size(2);
  const Tensor values = at::empty_symint({batch, length, heads, value.sym_size(3)}, query.options());
  return {
      values, at::empty_symint({batch, length, heads}, log_forget.options()),
      at::empty_symint({batch, heads}, query.options().dtype(at::kLong)),
      at::empty_symint({batch, heads, (length + (kQueryRows - 1)) / kQueryRows}, query.options().dtype(at::kInt)),
      keep_residual && has_residual(query.scalar_type()) ? at::empty_like(values) : at::empty({0}, query.options())};
}

BackwardResult backward_shapes(const Tensor& grad_values, const Tensor& query, const Tensor& key, const Tensor& value,
                               const Tensor& log_forget, const Tensor& values, const Tensor& residual,
                               const Tensor& log_normalizer, const Tensor& boundary, double scale) {
  check_backward_arguments(grad_values, query, key, value, log_forget, values, residual, log_normalizer, boundary,
                           scale);
  const auto contiguous_like = [](const Tensor& tensor) {
    return at::empty_symint(tensor.sym_sizes(), tensor.options());
  };
  return {contiguous_like(query), contiguous_like(key), contiguous_like(value), contiguous_like(log_forget)};
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> forgetting_attention_with_statistics(const Tensor& query, const Tensor& key,
                                                                        const Tensor& value, const Tensor& log_forget,
                                                                        std::optional<double> scale,
                                                                        std::optional<double> log_pruning_tolerance,
                                                                        const OptionalTensor& logit_bound) {
  check_layouts(query, key, value, log_forget, logit_bound);
  // Whether a gradient will want the residual is known below, where the derivative is recorded.
  auto [values, log_normalizer, visited_pairs, boundary, residual] = call_forward(
      query, key, value, log_forget, scale ? *scale : default_scale(query), log_pruning_tolerance, logit_bound, false);
  return {values, log_normalizer, visited_pairs};
}

Tensor forgetting_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_forget,
                            std::optional<double> scale, std::optional<double> log_pruning_tolerance,
                            const OptionalTensor& logit_bound) {
  return std::get<0>(
      forgetting_attention_with_statistics(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound));
}

TORCH_LIBRARY(lethe, library) {
  library.def(
      "forgetting_attention(Tensor query, Tensor key, Tensor value, Tensor log_forget, *, float? scale=None, "
      "float? log_pruning_tolerance=None, Tensor? logit_bound=None) -> Tensor",
      forgetting_attention);
  library.def(
      "forgetting_attention_with_statistics(Tensor query, Tensor key, Tensor value, Tensor log_forget, *, "
      "float? scale=None, float? log_pruning_tolerance=None, Tensor? logit_bound=None) "
      "-> (Tensor values, Tensor log_normalizer, Tensor visited_pairs)",
      forgetting_attention_with_statistics);
  library.def(
      "_forgetting_attention_forward(Tensor query, Tensor key, Tensor value, Tensor log_forget, float scale, "
      "float? log_pruning_tolerance, Tensor? logit_bound, bool keep_residual) "
      "-> (Tensor values, Tensor log_normalizer, Tensor visited_pairs, Tensor boundary, Tensor residual)");
  library.def(
      "_forgetting_attention_backward(Tensor grad_values, Tensor query, Tensor key, Tensor value, Tensor log_forget, "
      "Tensor values, Tensor residual, Tensor log_normalizer, Tensor boundary, float scale) "
      "-> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_log_forget)");
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_forgetting_attention_forward", differentiable_forward);
  // A second derivative is an error that names the operator.
  library.impl("_forgetting_attention_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_forgetting_attention_forward", forward_shapes);
  library.impl("_forgetting_attention_backward", backward_shapes);
}

}  // namespace lethe
