#include <torch/library.h>

#include <tuple>

#include "optimized/torch/layers/cuda_calls.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe::cuda {
namespace {

// Of the rows of [B,T,n].
layers::MutableRows mutable_rows(const at::Tensor& tensor) { return {tensor.mutable_data_ptr(), tensor.stride(1)}; }

at::Tensor scaled_heads_forward(const at::Tensor& x_rows, const at::Tensor& scale_of_heads) {
  const c10::cuda::CUDAGuard device(x_rows.device());
  const TensorRows x = rows_of(x_rows);
  const at::Tensor scale = scale_of_heads.contiguous();
  const int64_t heads = scale.size(2), head_dim = x_rows.size(2) / heads;
  const at::Tensor values = at::empty({x_rows.size(0), x_rows.size(1), heads, head_dim}, x_rows.options());
  layers::scaled_heads({.rows = row_count(scale),
                        .heads = heads,
                        .head_dim = head_dim,
                        .dtype = dtype_of(x_rows.scalar_type()),
                        .x = device_rows(x),
                        .scale = scale.const_data_ptr(),
                        .values = values.mutable_data_ptr(),
                        .stream = at::cuda::getCurrentCUDAStream()});
  return values;
}

std::tuple<at::Tensor, at::Tensor> scaled_heads_backward(const at::Tensor& grad_values, const at::Tensor& x_rows,
                                                         const at::Tensor& scale_of_heads) {
  const c10::cuda::CUDAGuard device(x_rows.device());
  const at::Tensor gradient = grad_values.flatten(2);
  const TensorRows x = rows_of(x_rows), arriving = rows_of(gradient);
  const at::Tensor scale = scale_of_heads.contiguous(), grad_x = gradient_like(x_rows),
                   grad_scale = at::empty(scale.sizes(), scale.options());
  const int64_t heads = scale.size(2);
  layers::scaled_heads_backward({.rows = row_count(scale),
                                 .heads = heads,
                                 .head_dim = x_rows.size(2) / heads,
                                 .dtype = dtype_of(x_rows.scalar_type()),
                                 .grad_values = device_rows(arriving),
                                 .x = device_rows(x),
                                 .scale = scale.const_data_ptr(),
                                 .grad_x = mutable_rows(grad_x),
                                 .grad_scale = grad_scale.mutable_data_ptr(),
                                 .stream = at::cuda::getCurrentCUDAStream()});
  return {grad_x, grad_scale};
}

at::Tensor gated_skip_forward(const at::Tensor& o_heads, const at::Tensor& x_rows, const at::Tensor& skip_of_heads,
                              const at::Tensor& gate_rows) {
  const c10::cuda::CUDAGuard device(o_heads.device());
  const at::Tensor o = o_heads.contiguous(), skip = skip_of_heads.contiguous();
  const TensorRows x = rows_of(x_rows), gate = rows_of(gate_rows);
  const at::Tensor values = at::empty(x_rows.sizes(), o.options());
  layers::gated_skip({.rows = row_count(values),
                      .heads = o.size(2),
                      .head_dim = o.size(3),
                      .dtype = dtype_of(o.scalar_type()),
                      .o = o.const_data_ptr(),
                      .x = device_rows(x),
                      .gate = device_rows(gate),
                      .skip = skip.const_data_ptr(),
                      .values = values.mutable_data_ptr(),
                      .stream = at::cuda::getCurrentCUDAStream()});
  return values;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> gated_skip_backward(const at::Tensor& grad_values,
                                                                               const at::Tensor& o_heads,
                                                                               const at::Tensor& x_rows,
                                                                               const at::Tensor& skip_of_heads,
                                                                               const at::Tensor& gate_rows) {
  const c10::cuda::CUDAGuard device(o_heads.device());
  const at::Tensor o = o_heads.contiguous(), skip = skip_of_heads.contiguous();
  const TensorRows x = rows_of(x_rows), gate = rows_of(gate_rows), arriving = rows_of(grad_values);
  const at::Tensor grad_o = at::empty(o.sizes(), o.options()), grad_x = gradient_like(x_rows),
                   grad_skip = at::empty(skip.sizes(), skip.options()), grad_gate = gradient_like(gate_rows);
  const int64_t rows = row_count(grad_values), heads = o.size(2);
  const Dtype dtype = dtype_of(o.scalar_type());
  const at::Tensor workspace = workspace_of(layers::gated_skip_workspace_bytes(rows, heads, dtype), o);
  layers::gated_skip_backward({.rows = rows,
                               .heads = heads,
                               .head_dim = o.size(3),
                               .dtype = dtype,
                               .grad_values = device_rows(arriving),
                               .o = o.const_data_ptr(),
                               .x = device_rows(x),
                               .gate = device_rows(gate),
                               .skip = skip.const_data_ptr(),
                               .grad_o = grad_o.mutable_data_ptr(),
                               .grad_x = mutable_rows(grad_x),
                               .grad_gate = mutable_rows(grad_gate),
                               .grad_skip = grad_skip.mutable_data_ptr(),
                               .workspace = workspace.mutable_data_ptr(),
                               .stream = at::cuda::getCurrentCUDAStream()});
  return {grad_o, grad_x, grad_skip, grad_gate};
}

TORCH_LIBRARY_IMPL(lethe, CUDA, library) {
  library.impl("_scaled_heads_forward", scaled_heads_forward);
  library.impl("_scaled_heads_backward", scaled_heads_backward);
  library.impl("_gated_skip_forward", gated_skip_forward);
  library.impl("_gated_skip_backward", gated_skip_backward);
}

}  // namespace
}  // namespace lethe::cuda
