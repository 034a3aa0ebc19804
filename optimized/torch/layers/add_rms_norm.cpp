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

using NormedSumRstd = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

NormedSumRstd add_rms_norm_shapes(const at::Tensor& residual, const std::optional<at::Tensor>& branch,
                                  const at::Tensor& weight, double, at::ScalarType dtype) {
  const c10::SymIntArrayRef sizes = residual.sym_sizes();
  return {at::empty_symint(sizes, residual.options().dtype(dtype)),
          branch ? at::empty_symint(sizes, residual.options()) : at::empty({0}, residual.options()),
          at::empty_symint(sizes.slice(0, sizes.size() - 1), weight.options())};
}

NormedSumRstd add_rms_norm_gradient_shapes(const at::Tensor& grad_normed, const std::optional<at::Tensor>&,
                                           const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& sum,
                                           const at::Tensor&) {
  const c10::SymIntArrayRef sizes = residual.sym_sizes();
  const bool has_branch = sum.dim() == residual.dim() && sum.sym_sizes() == sizes;
  return {at::empty_symint(sizes, residual.options()),
          has_branch ? at::empty_symint(sizes, grad_normed.options()) : at::empty({0}, grad_normed.options()),
          at::empty_symint(weight.sym_sizes(), weight.options())};
}

void check_add_rms_norm(const at::Tensor& residual, const std::optional<at::Tensor>& branch, const at::Tensor& weight,
                        double epsilon, at::ScalarType dtype) {
  const at::ScalarType wide = accumulation_dtype(dtype);
  check_layout("residual", residual);
  check_layout("weight", weight);
  check_floating("residual", residual);
  TORCH_CHECK(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
              "dtype: expected float64, float32, bfloat16 or float16, found ", dtype);
  if (wide == dtype) check_like("residual", residual, wide, residual);
  TORCH_CHECK(residual.scalar_type() == wide || residual.scalar_type() == dtype, "residual: expected dtype ", wide,
              " or ", dtype, ", found ", residual.scalar_type());
  TORCH_CHECK(residual.dim() >= 1 && residual.sym_size(-1) >= 1,
              "residual: expected rows of at least one column, found shape ", residual.sym_sizes());
  if (branch) {
    check_layout("branch", *branch);
    check_like("branch", *branch, dtype, residual, "residual");
    check_shape("branch", *branch, residual.sym_sizes());
  }
  check_like("weight", weight, wide, residual, "residual");
  check_shape("weight", weight, {residual.sym_size(-1)});
  check_epsilon(epsilon);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& residual, const std::optional<at::Tensor>& branch,
                                                const at::Tensor& weight, double epsilon, at::ScalarType dtype) {
  check_add_rms_norm(residual, branch, weight, epsilon, dtype);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_add_rms_norm_forward", "")
                             .typed<decltype(add_rms_norm_shapes)>();
  auto [normed, sum, rstd] = op.call(residual, branch, weight, epsilon, dtype);
  return {normed, branch ? sum : residual};
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def(
      "add_rms_norm(Tensor residual, Tensor? branch, Tensor weight, float epsilon, ScalarType dtype) -> "
      "(Tensor normed, Tensor sum)",
      add_rms_norm);
  library.def(
      "_add_rms_norm_forward(Tensor residual, Tensor? branch, Tensor weight, float epsilon, ScalarType dtype) -> "
      "(Tensor normed, Tensor sum, Tensor rstd)");
  library.def(
      "_add_rms_norm_backward(Tensor grad_normed, Tensor? grad_sum, Tensor residual, Tensor weight, Tensor sum, "
      "Tensor rstd) -> (Tensor grad_residual, Tensor grad_branch, Tensor grad_weight)");
}

TORCH_LIBRARY_IMPL(lethe, CPU, library) {
  library.impl("_add_rms_norm_forward", cpu::add_rms_norm_forward);
  library.impl("_add_rms_norm_backward", cpu::add_rms_norm_backward);
}

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_add_rms_norm_forward", add_rms_norm_shapes);
  library.impl("_add_rms_norm_backward", add_rms_norm_gradient_shapes);
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_add_rms_norm_forward", derivative_rule());
  library.impl("_add_rms_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace lethe
