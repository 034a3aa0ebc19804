// The operators as Torch sees them: schema, derivative, shapes. The arithmetic is two internal operators, forward and backward,
// which each device implements; derivative and shapes are written once in terms of those. Beta present is the delta rule.
#include "optimized/torch/matrix_state.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "optimized/torch/arguments.hpp"
#include "optimized/torch/checks.hpp"
#include "optimized/torch/matrix_state_arguments.hpp"

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using ForwardResult = std::tuple<Tensor, Tensor>;  // values, state
// ∂query, ∂key, ∂value, ∂log_key_gate, ∂log_value_gate, ∂beta, ∂state; of what is absent, an empty tensor
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

ForwardResult call_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                           const OptionalTensor& log_key_gate, const OptionalTensor& log_value_gate,
                           const OptionalTensor& beta, const OptionalTensor& state, double scale, bool normalize) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("lethe::_matrix_state_forward", "")
          .typed<ForwardResult(const Tensor&, const Tensor&, const Tensor&, const OptionalTensor&,
                               const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, double, bool)>();
  return op.call(query, key, value, log_key_gate, log_value_gate, beta, state, scale, normalize);
}

BackwardResult call_backward(const Tensor& grad_values, const Tensor& grad_state, const Tensor& query,
                             const Tensor& key, const Tensor& value, const OptionalTensor& log_key_gate,
                             const OptionalTensor& log_value_gate, const OptionalTensor& beta,
                             const OptionalTensor& state, double scale, bool normalize) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_matrix_state_backward", "")
                             .typed<BackwardResult(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                                   const Tensor&, const OptionalTensor&, const OptionalTensor&,
                                                   const OptionalTensor&, const OptionalTensor&, double, bool)>();
  return op.call(grad_values, grad_state, query, key, value, log_key_gate, log_value_gate, beta, state, scale,
                 normalize);
}

struct MatrixStateDerivative : torch::autograd::Function<MatrixStateDerivative> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const Tensor& query,
                                                const Tensor& key, const Tensor& value,
                                                const OptionalTensor& log_key_gate,
                                                const OptionalTensor& log_value_gate, const OptionalTensor& beta,
                                                const OptionalTensor& state, double scale, bool normalize) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [values, last_state] =
        call_forward(query, key, value, log_key_gate, log_value_gate, beta, state, scale, normalize);
    const auto or_undefined = [](const OptionalTensor& tensor) { return tensor.value_or(Tensor()); };
    context->save_for_backward({query, key, value, or_undefined(log_key_gate), or_undefined(log_value_gate),
                                or_undefined(beta), or_undefined(state)});
    context->saved_data["scale"] = scale;
    context->saved_data["normalize"] = normalize;
    return {values, last_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto given = [&](size_t i) { return saved[i].defined() ? OptionalTensor(saved[i]) : std::nullopt; };
    auto [query, key, value, log_key_gate, log_value_gate, beta, state] =
        call_backward(gradients[0], gradients[1], saved[0], saved[1], saved[2], given(3), given(4), given(5), given(6),
                      context->saved_data["scale"].toDouble(), context->saved_data["normalize"].toBool());
    const auto of_given = [&](size_t i, const Tensor& gradient) { return saved[i].defined() ? gradient : Tensor(); };
    return {query,
            key,
            value,
            of_given(3, log_key_gate),
            of_given(4, log_value_gate),
            of_given(5, beta),
            of_given(6, state),
            Tensor(),
            Tensor()};
  }
};

ForwardResult differentiable_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const OptionalTensor& log_key_gate, const OptionalTensor& log_value_gate,
                                     const OptionalTensor& beta, const OptionalTensor& state, double scale,
                                     bool normalize) {
  const auto outputs =
      MatrixStateDerivative::apply(query, key, value, log_key_gate, log_value_gate, beta, state, scale, normalize);
  return {outputs[0], outputs[1]};
}

ForwardResult forward_shapes(const Tensor& query, const Tensor& key, const Tensor& value,
                             const OptionalTensor& log_key_gate, const OptionalTensor& log_value_gate,
                             const OptionalTensor& beta, const OptionalTensor& state, double scale, bool normalize) {
  const MatrixStateInputs inputs{query, key, value, log_key_gate, log_value_gate, beta, state, scale, normalize};
  check_arguments(inputs);
  return {at::empty_symint(value.sym_sizes(), query.options()),
          at::empty_symint({query.sym_size(0), query.sym_size(2), query.sym_size(3), inputs.state_columns()},
                           query.options().dtype(accumulation_dtype(query.scalar_type())))};
}

BackwardResult backward_shapes(const Tensor& grad_values, const Tensor& grad_state, const Tensor& query,
                               const Tensor& key, const Tensor& value, const OptionalTensor& log_key_gate,
                               const OptionalTensor& log_value_gate, const OptionalTensor& beta,
                               const OptionalTensor& state, double scale, bool normalize) {
  check_gradient_arguments(grad_values, grad_state,
                           {query, key, value, log_key_gate, log_value_gate, beta, state, scale, normalize});
  const auto contiguous_like = [](const Tensor& tensor) {
    return at::empty_symint(tensor.sym_sizes(), tensor.options());
  };
  const auto like_given = [&](const OptionalTensor& tensor) {
    return tensor ? contiguous_like(*tensor) : at::empty({0}, grad_state.options());
  };
  return {contiguous_like(query),     contiguous_like(key), contiguous_like(value), like_given(log_key_gate),
          like_given(log_value_gate), like_given(beta),     like_given(state)};
}

double scale_of(const Tensor& query, std::optional<double> scale) {
  check_rank("query", query, 4, "[B,T,H,K]");
  return scale ? *scale : default_scale(query);
}

ForwardResult checked_forward(const MatrixStateInputs& in) {
  check_layouts(in);
  return call_forward(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate, in.beta, in.state, in.scale,
                      in.normalize);
}

}  // namespace

std::tuple<Tensor, Tensor> gated_state(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const OptionalTensor& log_key_gate, const OptionalTensor& log_value_gate,
                                       const OptionalTensor& state, std::optional<double> scale, bool normalize) {
  const OptionalTensor no_beta;
  return checked_forward(
      {query, key, value, log_key_gate, log_value_gate, no_beta, state, scale_of(query, scale), normalize});
}

std::tuple<Tensor, Tensor> delta_state(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                       const OptionalTensor& log_key_gate, const OptionalTensor& state,
                                       std::optional<double> scale) {
  const OptionalTensor no_value_gate, strength(beta);
  return checked_forward(
      {query, key, value, log_key_gate, no_value_gate, strength, state, scale_of(query, scale), false});
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def(
      "gated_state(Tensor query, Tensor key, Tensor value, Tensor? log_key_gate, Tensor? log_value_gate, Tensor? "
      "state=None, *, float? scale=None, bool normalize=False) -> (Tensor values, Tensor state)",
      gated_state);
  library.def(
      "delta_state(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor? log_key_gate=None, Tensor? "
      "state=None, *, float? scale=None) -> (Tensor values, Tensor state)",
      delta_state);
  library.def(
      "_matrix_state_forward(Tensor query, Tensor key, Tensor value, Tensor? log_key_gate, Tensor? log_value_gate, "
      "Tensor? beta, Tensor? state, float scale, bool normalize) -> (Tensor values, Tensor last_state)");
  library.def(
      "_matrix_state_backward(Tensor grad_values, Tensor grad_state, Tensor query, Tensor key, Tensor value, "
      "Tensor? log_key_gate, Tensor? log_value_gate, Tensor? beta, Tensor? state, float scale, bool normalize) -> "
      "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_log_key_gate, Tensor "
      "grad_log_value_gate, Tensor grad_beta, Tensor grad_initial_state)");
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_matrix_state_forward", differentiable_forward);
  // A second derivative is an error that names the operator.
  library.impl("_matrix_state_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_matrix_state_forward", forward_shapes);
  library.impl("_matrix_state_backward", backward_shapes);
}

}  // namespace lethe
