#include "optimized/torch/linear.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unsafe_view.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "optimized/operators/checks.hpp"
#include "optimized/torch/layers.hpp"
#include "optimized/torch/products.hpp"

namespace lethe {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x Wᵀ
Tensor product_with_transpose(const Tensor& x, const Tensor& weight) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(0);
  return at::_unsafe_view(product(x.reshape({-1, weight.size(1)}), weight.t()), sizes);
}

// The columns of x a row: those of the weight, or twice those where its swiglu is multiplied.
void check(const char* name, const Tensor& x, const Tensor& weight, const Tensor& gradient, int64_t halves) {
  check_layout(name, x);
  check_layout("weight", weight);
  check_layout("gradient", gradient);
  check_floating(name, x);
  check_rank("weight", weight, 2, "[m,n]");
  check_like("weight", weight, x.scalar_type(), x, name);
  TORCH_CHECK(x.dim() >= 1 && x.sym_size(-1) == halves * weight.sym_size(1), name, ": expected ",
              halves * weight.sym_size(1), " columns for weight, found shape ", x.sym_sizes());
  check_like("gradient", gradient, gradient.scalar_type() == at::kFloat ? at::kFloat : x.scalar_type(), x, name);
  check_shape("gradient", gradient, weight.sym_sizes());
}

// create_graph: the buffer has no history, and dx would have none.
void refuse_second_derivative(const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(), name, ": expected a first derivative, found create_graph");
}

// Weight and gradient are kept as constants: an optimizer changes both in place between steps, which a saved variable's version check forbids.
struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& gradient) {
    context->saved_data["weight"] = weight;
    context->saved_data["gradient"] = gradient;
    context->save_for_backward({x});
    return product_with_transpose(x, weight);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("lethe::linear");
    const Tensor weight = context->saved_data["weight"].toTensor(), x = context->get_saved_variables()[0];
    const Tensor dy = gradients[0].reshape({-1, weight.size(0)});
    add_product(context->saved_data["gradient"].toTensor(), dy.t(), x.reshape({-1, weight.size(1)}));
    return {product(dy, weight).view(x.sizes()), Tensor(), Tensor()};
  }
};

Tensor swiglu_backward(const Tensor& dy, const Tensor& gate_and_up) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_swiglu_backward", "")
                             .typed<Tensor(const Tensor&, const Tensor&)>();
  return op.call(dy, gate_and_up);
}

struct LinearOfSwiglu : torch::autograd::Function<LinearOfSwiglu> {
  static Tensor forward(AutogradContext* context, const Tensor& gate_and_up, const Tensor& weight,
                        const Tensor& gradient) {
    context->saved_data["weight"] = weight;
    context->saved_data["gradient"] = gradient;
    context->save_for_backward({gate_and_up});
    return product_with_transpose(swiglu(gate_and_up), weight);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("lethe::linear_of_swiglu");
    const at::AutoDispatchBelowAutograd below_autograd;
    const Tensor weight = context->saved_data["weight"].toTensor(), gate_and_up = context->get_saved_variables()[0];
    const Tensor dy = gradients[0].reshape({-1, weight.size(0)});
    add_product(context->saved_data["gradient"].toTensor(), dy.t(), swiglu(gate_and_up).view({-1, weight.size(1)}));
    std::vector<int64_t> sizes = gate_and_up.sizes().vec();
    sizes.back() = weight.size(1);
    return {swiglu_backward(product(dy, weight).view(sizes), gate_and_up), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor linear_of_swiglu(const Tensor& gate_and_up, const Tensor& weight, const Tensor& gradient) {
  check("gate_and_up", gate_and_up, weight, gradient, 2);
  return LinearOfSwiglu::apply(gate_and_up, weight.detach(), gradient.detach());
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& gradient) {
  check("x", x, weight, gradient, 1);
  return Linear::apply(x, weight.detach(), gradient.detach());
}

}  // namespace lethe
