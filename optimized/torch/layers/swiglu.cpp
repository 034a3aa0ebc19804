#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "optimized/cpu/layers/layers.hpp"
#include "optimized/operators/checks.hpp"
#include "optimized/torch/layers.hpp"
#include "optimized/torch/rules.hpp"

namespace lethe {
namespace {

at::Tensor swiglu_shapes(const at::Tensor& gate_and_up) {
  std::vector<c10::SymInt> sizes = gate_and_up.sym_sizes().vec();
  sizes.back() = sizes.back() / 2;
  return at::empty_symint(sizes, gate_and_up.options());
}

at::Tensor swiglu_gradient_shapes(const at::Tensor&, const at::Tensor& gate_and_up) {
  return at::empty_symint(gate_and_up.sym_sizes(), gate_and_up.options());
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_and_up) {
  check_layout("gate_and_up", gate_and_up);
  check_floating("gate_and_up", gate_and_up);
  TORCH_CHECK(gate_and_up.dim() >= 1, "gate_and_up: expected dimensions [..., 2I], found none");
  TORCH_CHECK(gate_and_up.sym_size(-1) % 2 == 0, "gate_and_up: expected an even number of columns, found ",
              gate_and_up.sym_size(-1));
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_swiglu_forward", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(gate_and_up);
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def("swiglu(Tensor gate_and_up) -> Tensor", swiglu);
  library.def("_swiglu_forward(Tensor gate_and_up) -> (Tensor values)");
  library.def("_swiglu_backward(Tensor grad_values, Tensor gate_and_up) -> (Tensor grad_gate_and_up)");
}

TORCH_LIBRARY_IMPL(lethe, CPU, library) {
  library.impl("_swiglu_forward", cpu::swiglu_forward);
  library.impl("_swiglu_backward", cpu::swiglu_backward);
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_swiglu_forward", swiglu_shapes);
  library.impl("_swiglu_backward", swiglu_gradient_shapes);
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_swiglu_forward", derivative_rule());
  library.impl("_swiglu_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace lethe
