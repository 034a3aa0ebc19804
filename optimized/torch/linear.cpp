#include "optimized/torch/linear.hpp"

#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lethe {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// gradient += dyᵀ x
void add_weight_gradient(Tensor& gradient, const Tensor& dy, const Tensor& x) {
  if (gradient.scalar_type() == x.scalar_type()) {
    gradient.addmm_(dy.t(), x);
  } else if (x.is_cuda()) {
    at::addmm_out(gradient, gradient, dy.t(), x, gradient.scalar_type());
  } else {
    gradient.add_(at::mm(dy.t(), x));
  }
}

// Weight and gradient are kept as constants: an optimizer changes both in place between steps, which a saved variable's version check forbids.
struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, const Tensor& gradient) {
    context->saved_data["weight"] = weight;
    context->saved_data["gradient"] = gradient;
    context->save_for_backward({x});
    return at::linear(x, weight);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Tensor weight = context->saved_data["weight"].toTensor(), x = context->get_saved_variables()[0];
    Tensor gradient = context->saved_data["gradient"].toTensor();
    const Tensor dy = gradients[0].reshape({-1, weight.size(0)});
    add_weight_gradient(gradient, dy, x.reshape({-1, weight.size(1)}));
    return {at::mm(dy, weight).view(x.sizes()), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& gradient) {
  return Linear::apply(x, weight.detach(), gradient.detach());
}

}  // namespace lethe
