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

at::Tensor scaled_heads_shapes(const at::Tensor& x, const at::Tensor& scale) {
  const c10::SymInt heads = scale.sym_size(2);
  return at::empty_symint({x.sym_size(0), x.sym_size(1), heads, x.sym_size(2) / heads}, x.options());
}

std::tuple<at::Tensor, at::Tensor> scaled_heads_gradient_shapes(const at::Tensor&, const at::Tensor& x,
                                                                const at::Tensor& scale) {
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(scale.sym_sizes(), scale.options())};
}

}  // namespace

at::Tensor scaled_heads(const at::Tensor& x, const at::Tensor& scale) {
  check_layout("x", x);
  check_floating("x", x);
  check_rank("x", x, 3, "[B,T,H·D]");
  check_layout("scale", scale);
  check_like("scale", scale, accumulation_dtype(x.scalar_type()), x, "x");
  check_rank("scale", scale, 3, "[B,T,H]");
  check_shape("scale", scale, {x.sym_size(0), x.sym_size(1), scale.sym_size(2)});
  TORCH_CHECK(scale.sym_size(2) >= 1 && x.sym_size(2) % scale.sym_size(2) == 0,
              "x: expected as many columns for each of the heads of scale, found ", x.sym_size(2), " columns and ",
              scale.sym_size(2), " heads");
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_scaled_heads_forward", "")
                             .typed<decltype(scaled_heads_shapes)>();
  return op.call(x, scale);
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def("scaled_heads(Tensor x, Tensor scale) -> Tensor", scaled_heads);
  library.def("_scaled_heads_forward(Tensor x, Tensor scale) -> (Tensor values)");
  library.def(
      "_scaled_heads_backward(Tensor grad_values, Tensor x, Tensor scale) -> (Tensor grad_x, Tensor grad_scale)");
}

TORCH_LIBRARY_IMPL(lethe, CPU, library) {
  library.impl("_scaled_heads_forward", cpu::scaled_heads_forward);
  library.impl("_scaled_heads_backward", cpu::scaled_heads_backward);
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_scaled_heads_forward", scaled_heads_shapes);
  library.impl("_scaled_heads_backward", scaled_heads_gradient_shapes);
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_scaled_heads_forward", derivative_rule());
  library.impl("_scaled_heads_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace lethe
