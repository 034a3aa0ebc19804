#include "experiments/models/recompute.hpp"

#include <torch/autograd.h>

#include <stdexcept>

namespace lethe {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

struct Held : torch::CustomClassHolder {
  explicit Held(TensorFunction held) : function(std::move(held)) {}
  TensorFunction function;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static variable_list forward(AutogradContext* context, const TensorFunction& function, at::TensorList inputs) {
    context->saved_data["function"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(function));
    context->save_for_backward(inputs.vec());
    return function(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["function"].toCapsule();
    variable_list inputs = context->get_saved_variables();
    for (Tensor& input : inputs) input = input.detach().requires_grad_(input.is_floating_point());
    variable_list results, arriving;
    {
      const torch::AutoGradMode with_gradients(true);
      const variable_list all = static_cast<Held&>(*capsule).function(inputs);
      for (size_t i = 0; i < all.size(); ++i) {
        if (!gradients[i].defined()) continue;
        results.push_back(all[i]);
        arriving.push_back(gradients[i]);
      }
      torch::autograd::backward(results, arriving);
    }
    variable_list found{Tensor()};  // of the function
    for (const Tensor& input : inputs) found.push_back(input.grad());
    return found;
  }
};

}  // namespace

Recompute recompute_named(const std::string& name) {
  if (name == "none") return Recompute::kNone;
  if (name == "activations") return Recompute::kActivations;
  if (name == "block") return Recompute::kBlock;
  throw std::invalid_argument("recompute: expected none, activations or block, found " + name);
}

std::vector<Tensor> recomputed(const TensorFunction& function, const std::vector<Tensor>& inputs) {
  // An autograd function takes no undefined tensors.
  std::vector<Tensor> defined;
  std::vector<bool> is_defined;
  for (const Tensor& input : inputs) {
    is_defined.push_back(input.defined());
    if (input.defined()) defined.push_back(input);
  }
  const TensorFunction of_defined = [function, is_defined](const std::vector<Tensor>& given) {
    std::vector<Tensor> all;
    auto next = given.begin();
    for (const bool there : is_defined) all.push_back(there ? *next++ : Tensor());
    return function(all);
  };
  return Recomputed::apply(of_defined, at::TensorList(defined));  // a list, not a vector: its tensors get gradients
}

}  // namespace lethe
