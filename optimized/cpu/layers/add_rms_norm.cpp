#include <ATen/ops/empty.h>

#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/layers/add_rms_norm_kernels.hpp"
#include "optimized/cpu/layers/layers.hpp"
#include "optimized/cpu/layers/rows.hpp"
#include "optimized/operators/rows.hpp"

namespace lethe::cpu {

LETHE_CHOICE(AddRmsNormKernels, add_rms_norm_kernels)

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_forward(const at::Tensor& residual_rows,
                                                                    const std::optional<at::Tensor>& branch_rows,
                                                                    const at::Tensor& weight_entries, double epsilon,
                                                                    at::ScalarType dtype) {
  const at::Tensor residual = residual_rows.contiguous(), weight = weight_entries.contiguous();
  const at::Tensor branch = branch_rows ? branch_rows->contiguous() : at::Tensor();
  const int64_t width = residual.size(-1);
  const at::Tensor normed = at::empty(residual.sizes(), residual.options().dtype(dtype));
  const at::Tensor sum =
      branch_rows ? at::empty(residual.sizes(), residual.options()) : at::empty({0}, residual.options());
  const at::Tensor rstd = at::empty(residual.sizes().slice(0, residual.dim() - 1), weight.options());
  const AddRmsNormRows rows{.width = width,
                            .epsilon = epsilon,
                            .residual = residual.const_data_ptr(),
                            .branch = branch_rows ? branch.const_data_ptr() : nullptr,
                            .weight = weight.const_data_ptr(),
                            .normed = normed.mutable_data_ptr(),
                            .sum = sum.mutable_data_ptr(),
                            .rstd = rstd.mutable_data_ptr()};
  const auto kernel = add_rms_norm_kernels().forward[residual.scalar_type() == dtype][storage_index(dtype)];
  for_rows(row_count(residual), width, [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return {normed, sum, rstd};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm_backward(
    const at::Tensor& grad_normed_rows, const std::optional<at::Tensor>& grad_sum_rows, const at::Tensor& residual,
    const at::Tensor& weight_entries, const at::Tensor& sum_rows, const at::Tensor& rstd) {
  const bool has_branch = sum_rows.sizes() == residual.sizes();
  const at::Tensor grad_normed = grad_normed_rows.contiguous(), weight = weight_entries.contiguous();
  const at::Tensor grad_sum = grad_sum_rows && has_branch ? grad_sum_rows->contiguous() : at::Tensor();
  const at::Tensor sum = has_branch ? sum_rows : residual.contiguous();
  const at::ScalarType dtype = grad_normed.scalar_type();
  const int64_t width = sum.size(-1);
  const at::Tensor grad_residual = at::empty(sum.sizes(), sum.options());
  const at::Tensor grad_branch =
      has_branch ? at::empty(sum.sizes(), grad_normed.options()) : at::empty({0}, grad_normed.options());
  const AddRmsNormGradientRows rows{.width = width,
                                    .grad_normed = grad_normed.const_data_ptr(),
                                    .grad_sum = grad_sum.defined() ? grad_sum.const_data_ptr() : nullptr,
                                    .sum = sum.const_data_ptr(),
                                    .weight = weight.const_data_ptr(),
                                    .rstd = rstd.const_data_ptr(),
                                    .grad_residual = grad_residual.mutable_data_ptr(),
                                    .grad_branch = has_branch ? grad_branch.mutable_data_ptr() : nullptr};
  const auto kernel = add_rms_norm_kernels().backward[sum.scalar_type() == dtype][storage_index(dtype)];
  const at::Tensor grad_weight =
      sum_over_rows(row_count(sum), width, weight.options(),
                    [&](int64_t begin, int64_t end, void* partial) { kernel(rows, begin, end, partial); });
  return {grad_residual, grad_branch, grad_weight};
}

}  // namespace lethe::cpu
