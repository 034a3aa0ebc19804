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

using FourTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

at::Tensor short_convolution_shapes(const at::Tensor& x, const at::Tensor&, const std::optional<at::Tensor>&,
                                    const std::optional<at::Tensor>&, bool) {
  return at::empty_symint(x.sym_sizes(), x.options());
}

FourTensors short_convolution_gradient_shapes(const at::Tensor&, const at::Tensor& x, const at::Tensor& weight,
                                              const std::optional<at::Tensor>& bias,
                                              const std::optional<at::Tensor>& state, bool) {
  const auto like = [&](const std::optional<at::Tensor>& given) {
    return given ? at::empty_symint(given->sym_sizes(), given->options()) : at::empty({0}, x.options());
  };
  return {like(x), like(weight), like(bias), like(state)};
}

void check_short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& state) {
  check_layout("x", x);
  check_layout("weight", weight);
  check_floating("x", x);
  check_rank("x", x, 3, "[B,T,C]");
  check_rank("weight", weight, 2, "[C,W]");
  const at::ScalarType wide = accumulation_dtype(x.scalar_type());
  const c10::SymInt channels = x.sym_size(2), width = weight.sym_size(1);
  TORCH_CHECK(width >= 2 && width <= 4, "weight: expected 2 to 4 columns, found ", width);
  check_like("weight", weight, wide, x, "x");
  check_shape("weight", weight, {channels, width});
  if (bias) {
    check_layout("bias", *bias);
    check_like("bias", *bias, wide, x, "x");
    check_shape("bias", *bias, {channels});
  }
  if (state) {
    check_layout("state", *state);
    check_like("state", *state, x.scalar_type(), x, "x");
    check_shape("state", *state, {x.sym_size(0), width - 1, channels});
  }
}

}  // namespace

at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& state, bool silu) {
  check_short_convolution(x, weight, bias, state);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_short_convolution_forward", "")
                             .typed<decltype(short_convolution_shapes)>();
  return op.call(x, weight, bias, state, silu);
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def(
      "short_convolution(Tensor x, Tensor weight, Tensor? bias=None, Tensor? state=None, bool silu=False) -> Tensor",
      short_convolution);
  library.def(
      "_short_convolution_forward(Tensor x, Tensor weight, Tensor? bias, Tensor? state, bool silu) -> (Tensor values)");
  library.def(
      "_short_convolution_backward(Tensor grad_values, Tensor x, Tensor weight, Tensor? bias, Tensor? state, bool "
      "silu) -> (Tensor grad_x, Tensor grad_weight, Tensor grad_bias, Tensor grad_state)");
}

TORCH_LIBRARY_IMPL(lethe, CPU, library) {
  library.impl("_short_convolution_forward", cpu::short_convolution_forward);
  library.impl("_short_convolution_backward", cpu::short_convolution_backward);
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_short_convolution_forward", short_convolution_shapes);
  library.impl("_short_convolution_backward", short_convolution_gradient_shapes);
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_short_convolution_forward", derivative_rule());
  library.impl("_short_convolution_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace lethe
