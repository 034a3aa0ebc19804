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

at::Tensor gated_output_shapes(const at::Tensor& o, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                               double) {
  return at::empty_symint({o.sym_size(0), o.sym_size(1), o.sym_size(2) * o.sym_size(3)}, o.options());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gated_output_gradient_shapes(const at::Tensor&, const at::Tensor& o,
                                                                            const std::optional<at::Tensor>& gate,
                                                                            const std::optional<at::Tensor>& norm,
                                                                            double) {
  const auto like = [&](const std::optional<at::Tensor>& tensor) {
    return tensor ? at::empty_symint(tensor->sym_sizes(), tensor->options()) : at::empty({0}, o.options());
  };
  return {at::empty_symint(o.sym_sizes(), o.options()), like(gate), like(norm)};
}

void check_gated_output(const at::Tensor& o, const std::optional<at::Tensor>& gate,
                        const std::optional<at::Tensor>& norm, double epsilon) {
  check_layout("o", o);
  check_floating("o", o);
  check_rank("o", o, 4, "[B,T,H,D]");
  const c10::SymInt width = o.sym_size(2) * o.sym_size(3);
  TORCH_CHECK(width >= 1, "o: expected at least one head of at least one dimension, found shape ", o.sym_sizes());
  if (gate) {
    check_layout("gate", *gate);
    check_like("gate", *gate, o.scalar_type(), o, "o");
    check_shape("gate", *gate, {o.sym_size(0), o.sym_size(1), width});
  }
  if (norm) {
    check_layout("norm", *norm);
    check_like("norm", *norm, accumulation_dtype(o.scalar_type()), o, "o");
    check_shape("norm", *norm, {width});
    check_epsilon(epsilon);
  }
}

}  // namespace

at::Tensor gated_output(const at::Tensor& o, const std::optional<at::Tensor>& gate,
                        const std::optional<at::Tensor>& norm, double epsilon) {
  check_gated_output(o, gate, norm, epsilon);
  if (!gate && !norm) return o.flatten(2);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_gated_output_forward", "")
                             .typed<decltype(gated_output_shapes)>();
  return op.call(o, gate, norm, epsilon);
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def("gated_output(Tensor o, Tensor? gate, Tensor? norm, float epsilon) -> Tensor", gated_output);
  library.def("_gated_output_forward(Tensor o, Tensor? gate, Tensor? norm, float epsilon) -> (Tensor values)");
  library.def(
      "_gated_output_backward(Tensor grad_values, Tensor o, Tensor? gate, Tensor? norm, float epsilon) -> "
      "(Tensor grad_o, Tensor grad_gate, Tensor grad_norm)");
}

TORCH_LIBRARY_IMPL(lethe, CPU, library) {
  library.impl("_gated_output_forward", cpu::gated_output_forward);
  library.impl("_gated_output_backward", cpu::gated_output_backward);
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_gated_output_forward", gated_output_shapes);
  library.impl("_gated_output_backward", gated_output_gradient_shapes);
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_gated_output_forward", derivative_rule());
  library.impl("_gated_output_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace lethe
