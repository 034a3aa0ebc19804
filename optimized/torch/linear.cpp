#include "optimized/torch/linear.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_unsafe_view.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

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

// Weight and gradient are kept as constants: an optimizer changes both in place between steps, which a saved variable's version check forbids.
struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& gradient) {
    context->saved_data["weight"] = weight;
    context->saved_data["gradient"] = gradient;
    context->save_for_backward({x});
    return product_with_transpose(x, weight);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
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
  return LinearOfSwiglu::apply(gate_and_up, weight.detach(), gradient.detach());
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& gradient) {
  return Linear::apply(x, weight.detach(), gradient.detach());
}

}  // namespace lethe
