#include <ATen/ops/empty.h>

#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/layers/heads_kernels.hpp"
#include "optimized/cpu/layers/layers.hpp"
#include "optimized/cpu/layers/rows.hpp"

namespace lethe::cpu {

using at::Tensor;

LETHE_CHOICE(HeadsKernels, heads_kernels)

Tensor scaled_heads_forward(const Tensor& x_rows, const Tensor& scales) {
  const Tensor x = x_rows.contiguous(), scale = scales.contiguous();
  const int64_t heads = scale.size(2), head_dim = x.size(2) / heads;
  const Tensor values = at::empty({x.size(0), x.size(1), heads, head_dim}, x.options());
  const ScaledHeadsRows rows{.heads = heads,
                             .head_dim = head_dim,
                             .x = x.const_data_ptr(),
                             .scale = scale.const_data_ptr(),
                             .values = values.mutable_data_ptr(),
                             .grad_values = nullptr,
                             .grad_x = nullptr,
                             .grad_scale = nullptr};
  const auto kernel = heads_kernels().scaled_forward[storage_index(x.scalar_type())];
  for_rows(x.size(0) * x.size(1), x.size(2), [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return values;
}

std::tuple<Tensor, Tensor> scaled_heads_backward(const Tensor& grad_values, const Tensor& x_rows,
                                                 const Tensor& scales) {
  const Tensor x = x_rows.contiguous(), scale = scales.contiguous(), arriving = grad_values.contiguous();
  const Tensor grad_x = at::empty(x.sizes(), x.options()), grad_scale = at::empty(scale.sizes(), scale.options());
  const ScaledHeadsRows rows{.heads = scale.size(2),
                             .head_dim = x.size(2) / scale.size(2),
                             .x = x.const_data_ptr(),
                             .scale = scale.const_data_ptr(),
                             .values = nullptr,
                             .grad_values = arriving.const_data_ptr(),
                             .grad_x = grad_x.mutable_data_ptr(),
                             .grad_scale = grad_scale.mutable_data_ptr()};
  const auto kernel = heads_kernels().scaled_backward[storage_index(x.scalar_type())];
  for_rows(x.size(0) * x.size(1), x.size(2), [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return {grad_x, grad_scale};
}

Tensor gated_skip_forward(const Tensor& o_rows, const Tensor& x_rows, const Tensor& skips, const Tensor& gate_rows) {
  const Tensor o = o_rows.contiguous(), x = x_rows.contiguous(), skip = skips.contiguous(),
               gate = gate_rows.contiguous();
  const Tensor values = at::empty(x.sizes(), x.options());
  const GatedSkipRows rows{.heads = o.size(2),
                           .head_dim = o.size(3),
                           .o = o.const_data_ptr(),
                           .x = x.const_data_ptr(),
                           .gate = gate.const_data_ptr(),
                           .skip = skip.const_data_ptr(),
                           .values = values.mutable_data_ptr(),
                           .grad_values = nullptr,
                           .grad_o = nullptr,
                           .grad_x = nullptr,
                           .grad_gate = nullptr};
  const auto kernel = heads_kernels().skip_forward[storage_index(x.scalar_type())];
  for_rows(x.size(0) * x.size(1), x.size(2), [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return values;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> gated_skip_backward(const Tensor& grad_values, const Tensor& o_rows,
                                                               const Tensor& x_rows, const Tensor& skips,
                                                               const Tensor& gate_rows) {
  const Tensor o = o_rows.contiguous(), x = x_rows.contiguous(), skip = skips.contiguous(),
               gate = gate_rows.contiguous(), arriving = grad_values.contiguous();
  const Tensor grad_o = at::empty(o.sizes(), o.options()), grad_x = at::empty(x.sizes(), x.options()),
               grad_gate = at::empty(x.sizes(), x.options());
  const GatedSkipRows rows{.heads = o.size(2),
                           .head_dim = o.size(3),
                           .o = o.const_data_ptr(),
                           .x = x.const_data_ptr(),
                           .gate = gate.const_data_ptr(),
                           .skip = skip.const_data_ptr(),
                           .values = nullptr,
                           .grad_values = arriving.const_data_ptr(),
                           .grad_o = grad_o.mutable_data_ptr(),
                           .grad_x = grad_x.mutable_data_ptr(),
                           .grad_gate = grad_gate.mutable_data_ptr()};
  const auto kernel = heads_kernels().skip_backward[storage_index(x.scalar_type())];
  const Tensor grad_skip =
      sum_over_rows(x.size(0) * x.size(1), o.size(2), skip.options(),
                    [&](int64_t begin, int64_t end, void* partial) { kernel(rows, begin, end, partial); });
  return {grad_o, grad_x, grad_skip, grad_gate};
}

}  // namespace lethe::cpu
