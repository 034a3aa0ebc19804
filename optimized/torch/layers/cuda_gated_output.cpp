#include <torch/library.h>

#include <optional>
#include <tuple>

#include "optimized/torch/layers/backward.hpp"
#include "optimized/torch/layers/cuda_calls.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe::cuda {
namespace {

at::Tensor gated_output_forward(const at::Tensor& o_rows, const std::optional<at::Tensor>& gate_rows,
                                const std::optional<at::Tensor>& norm_entries, double epsilon) {
  const c10::cuda::CUDAGuard device(o_rows.device());
  const at::Tensor o = o_rows.contiguous(), norm = norm_entries ? norm_entries->contiguous() : at::Tensor();
  const TensorRows gate = rows_of(gate_rows.value_or(at::Tensor()));
  const at::Tensor values = at::empty({o.size(0), o.size(1), o.size(2) * o.size(3)}, o.options());
  layers::gated_output({.rows = row_count(values),
                        .heads = o.size(2),
                        .head_dim = o.size(3),
                        .dtype = dtype_of(o.scalar_type()),
                        .epsilon = epsilon,
                        .o = o.const_data_ptr(),
                        .gate = device_rows(gate),
                        .norm = norm.defined() ? norm.const_data_ptr() : nullptr,
                        .values = values.mutable_data_ptr(),
                        .stream = at::cuda::getCurrentCUDAStream()});
  return values;
}

}  // namespace

GatedOutputGradients gated_output_backward(const at::Tensor& grad_values, const at::Tensor& o_rows,
                                           const at::Tensor& residual_rows, const std::optional<at::Tensor>& gate_rows,
                                           const std::optional<at::Tensor>& norm_entries, double epsilon, bool delta) {
  const c10::cuda::CUDAGuard device(o_rows.device());
  const at::Tensor o = o_rows.contiguous(), norm = norm_entries ? norm_entries->contiguous() : at::Tensor();
  const TensorRows gate = rows_of(gate_rows.value_or(at::Tensor())), grad = rows_of(grad_values);
  const at::Tensor grad_o = at::empty(o.sizes(), o.options());
  const at::Tensor grad_gate = gate_rows ? gradient_like(*gate_rows) : at::empty({0}, o.options());
  const at::Tensor grad_norm = norm_entries ? at::empty(norm.sizes(), norm.options()) : at::empty({0}, o.options());
  const at::Tensor residual = delta && residual_rows.numel() > 0 ? residual_rows.contiguous() : at::Tensor();
  const at::Tensor deltas =
      delta ? at::empty({o.size(0), o.size(1), o.size(2)}, o.options().dtype(at::kFloat)) : at::Tensor();
  const int64_t rows = row_count(grad_values), heads = o.size(2), head_dim = o.size(3);
  const Dtype dtype = dtype_of(o.scalar_type());
  const size_t bytes = norm_entries ? layers::gated_output_workspace_bytes(rows, heads, head_dim, dtype) : 0;
  const at::Tensor workspace = workspace_of(bytes, o);
  layers::gated_output_backward(
      {.rows = rows,
       .heads = heads,
       .head_dim = head_dim,
       .dtype = dtype,
       .epsilon = epsilon,
       .grad_values = device_rows(grad),
       .o = o.const_data_ptr(),
       .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
       .gate = device_rows(gate),
       .norm = norm.defined() ? norm.const_data_ptr() : nullptr,
       .grad_o = grad_o.mutable_data_ptr(),
       .grad_gate =
           gate_rows ? layers::MutableRows{grad_gate.mutable_data_ptr(), grad_gate.stride(1)} : layers::MutableRows{},
       .grad_norm = norm_entries ? grad_norm.mutable_data_ptr() : nullptr,
       .delta = deltas.defined() ? deltas.mutable_data_ptr() : nullptr,
       .workspace = workspace.mutable_data_ptr(),
       .stream = at::cuda::getCurrentCUDAStream()});
  return {grad_o, grad_gate, grad_norm, deltas};
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward_of_gated_output(const at::Tensor& grad_values,
                                                                        const at::Tensor& o,
                                                                        const std::optional<at::Tensor>& gate,
                                                                        const std::optional<at::Tensor>& norm,
                                                                        double epsilon) {
  const GatedOutputGradients gradients = gated_output_backward(grad_values, o, {}, gate, norm, epsilon, false);
  return {gradients.o, gradients.gate, gradients.norm};
}

TORCH_LIBRARY_IMPL(lethe, CUDA, library) {
  library.impl("_gated_output_forward", gated_output_forward);
  library.impl("_gated_output_backward", backward_of_gated_output);
}

}  // namespace
}  // namespace lethe::cuda
