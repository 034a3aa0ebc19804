#include <torch/library.h>

#include <optional>
#include <tuple>

#include "optimized/torch/layers/cuda_calls.hpp"

namespace lethe::cuda {
namespace {

using ThreeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

ThreeTensors add_rms_norm_forward(const at::Tensor& residual_rows, const std::optional<at::Tensor>& branch_rows,
                                  const at::Tensor& weight_entries, double epsilon, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard device(residual_rows.device());
  const at::Tensor residual = residual_rows.contiguous(), weight = weight_entries.contiguous();
  const at::Tensor branch = branch_rows ? branch_rows->contiguous() : at::Tensor();
  const at::Tensor normed = at::empty(residual.sizes(), residual.options().dtype(dtype));
  const at::Tensor sum =
      branch_rows ? at::empty(residual.sizes(), residual.options()) : at::empty({0}, residual.options());
  const at::Tensor rstd = at::empty(residual.sizes().slice(0, residual.dim() - 1), weight.options());
  layers::add_rms_norm({.rows = row_count(residual),
                        .width = residual.size(-1),
                        .dtype = dtype_of(dtype),
                        .residual_dtype = dtype_of(residual.scalar_type()),
                        .epsilon = epsilon,
                        .residual = residual.const_data_ptr(),
                        .branch = branch_rows ? branch.const_data_ptr() : nullptr,
                        .weight = weight.const_data_ptr(),
                        .normed = normed.mutable_data_ptr(),
                        .sum = sum.mutable_data_ptr(),
                        .rstd = rstd.mutable_data_ptr(),
                        .stream = at::cuda::getCurrentCUDAStream()});
  return {normed, sum, rstd};
}

ThreeTensors add_rms_norm_backward(const at::Tensor& grad_normed_rows, const std::optional<at::Tensor>& grad_sum_rows,
                                   const at::Tensor& residual, const at::Tensor& weight_entries,
                                   const at::Tensor& sum_rows, const at::Tensor& rstd) {
  const c10::cuda::CUDAGuard device(residual.device());
  const bool has_branch = sum_rows.sizes() == residual.sizes();
  const at::Tensor grad_normed = grad_normed_rows.contiguous(), weight = weight_entries.contiguous();
  const at::Tensor grad_sum = grad_sum_rows && has_branch ? grad_sum_rows->contiguous() : at::Tensor();
  const at::Tensor sum = has_branch ? sum_rows : residual.contiguous();
  const at::Tensor grad_residual = at::empty(sum.sizes(), sum.options());
  const at::Tensor grad_branch =
      has_branch ? at::empty(sum.sizes(), grad_normed.options()) : at::empty({0}, grad_normed.options());
  const at::Tensor grad_weight = at::empty(weight.sizes(), weight.options());
  const int64_t rows = row_count(sum), width = sum.size(-1);
  const Dtype dtype = dtype_of(grad_normed.scalar_type());
  const at::Tensor workspace = workspace_of(layers::add_rms_norm_workspace_bytes(rows, width, dtype), sum);
  layers::add_rms_norm_backward({.rows = rows,
                                 .width = width,
                                 .dtype = dtype,
                                 .residual_dtype = dtype_of(sum.scalar_type()),
                                 .grad_normed = grad_normed.const_data_ptr(),
                                 .grad_sum = grad_sum.defined() ? grad_sum.const_data_ptr() : nullptr,
                                 .sum = sum.const_data_ptr(),
                                 .weight = weight.const_data_ptr(),
                                 .rstd = rstd.const_data_ptr(),
                                 .grad_residual = grad_residual.mutable_data_ptr(),
                                 .grad_branch = has_branch ? grad_branch.mutable_data_ptr() : nullptr,
                                 .grad_weight = grad_weight.mutable_data_ptr(),
                                 .workspace = workspace.mutable_data_ptr(),
                                 .stream = at::cuda::getCurrentCUDAStream()});
  return {grad_residual, grad_branch, grad_weight};
}

TORCH_LIBRARY_IMPL(lethe, CUDA, library) {
  library.impl("_add_rms_norm_forward", add_rms_norm_forward);
  library.impl("_add_rms_norm_backward", add_rms_norm_backward);
}

}  // namespace
}  // namespace lethe::cuda
