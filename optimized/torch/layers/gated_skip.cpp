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

at::Tensor gated_skip_shapes(const at::Tensor& o, const at::Tensor& x, const at::Tensor&, const at::Tensor&) {
  return at::empty_symint(x.sym_sizes(), o.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> gated_skip_gradient_shapes(
    const at::Tensor&, const at::Tensor& o, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& gate) {
  const auto like = [](const at::Tensor& tensor) { return at::empty_symint(tensor.sym_sizes(), tensor.options()); };
  return {like(o), like(x), like(skip), like(gate)};
}

}  // namespace

at::Tensor gated_skip(const at::Tensor& o, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& gate) {
  check_layout("o", o);
  check_floating("o", o);
  check_rank("o", o, 4, "[B,T,H,D]");
  const c10::SymInt heads = o.sym_size(2), width = heads * o.sym_size(3);
  TORCH_CHECK(width >= 1, "o: expected at least one head of at least one dimension, found shape ", o.sym_sizes());
  for (const auto& [name, tensor] : {std::pair<const char*, const at::Tensor&>{"x", x}, {"gate", gate}}) {
    check_layout(name, tensor);
    check_like(name, tensor, o.scalar_type(), o, "o");
    check_shape(name, tensor, {o.sym_size(0), o.sym_size(1), width});
  }
  check_layout("skip", skip);
  check_like("skip", skip, accumulation_dtype(o.scalar_type()), o, "o");
  check_shape("skip", skip, {heads});
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_gated_skip_forward", "")
                             .typed<decltype(gated_skip_shapes)>();
  return op.call(o, x, skip, gate);
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def("gated_skip(Tensor o, Tensor x, Tensor skip, Tensor gate) -> Tensor", gated_skip);
  library.def("_gated_skip_forward(Tensor o, Tensor x, Tensor skip, Tensor gate) -> (Tensor values)");
  library.def(
      "_gated_skip_backward(Tensor grad_values, Tensor o, Tensor x, Tensor skip, Tensor gate) -> "
      "(Tensor grad_o, Tensor grad_x, Tensor grad_skip, Tensor grad_gate)");
}

TORCH_LIBRARY_IMPL(lethe, CPU, library) {
  library.impl("_gated_skip_forward", cpu::gated_skip_forward);
  library.impl("_gated_skip_backward", cpu::gated_skip_backward);
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_gated_skip_forward", gated_skip_shapes);
  library.impl("_gated_skip_backward", gated_skip_gradient_shapes);
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_gated_skip_forward", derivative_rule());
  library.impl("_gated_skip_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace lethe
