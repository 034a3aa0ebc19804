#include <ATen/ops/empty.h>

#include <vector>

#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/layers/gated_output_kernels.hpp"
#include "optimized/cpu/layers/layers.hpp"
#include "optimized/cpu/layers/rows.hpp"
#include "optimized/operators/rows.hpp"

namespace lethe::cpu {

LETHE_CHOICE(GatedOutputKernels, gated_output_kernels)

at::Tensor gated_output_forward(const at::Tensor& o_rows, const std::optional<at::Tensor>& gate_rows,
                                const std::optional<at::Tensor>& norm_entries, double epsilon) {
  const at::Tensor o = o_rows.contiguous(), norm = norm_entries ? norm_entries->contiguous() : at::Tensor();
  const TensorRows gate = rows_of(gate_rows.value_or(at::Tensor()));
  const int64_t width = o.size(2) * o.size(3);
  const at::Tensor values = at::empty({o.size(0), o.size(1), width}, o.options());
  const GatedOutputRows rows{.heads = o.size(2),
                             .head_dim = o.size(3),
                             .epsilon = epsilon,
                             .o = o.const_data_ptr(),
                             .gate = gate.data(),
                             .gate_pitch = gate.pitch,
                             .norm = norm.defined() ? norm.const_data_ptr() : nullptr,
                             .values = values.mutable_data_ptr(),
                             .grad_values = nullptr,
                             .grad_pitch = 0,
                             .grad_o = nullptr,
                             .grad_gate = nullptr};
  const auto kernel = gated_output_kernels().forward[storage_index(o.scalar_type())];
  for_rows(row_count(values), width, [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return values;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> gated_output_backward(const at::Tensor& grad_values,
                                                                     const at::Tensor& o_rows,
                                                                     const std::optional<at::Tensor>& gate_rows,
                                                                     const std::optional<at::Tensor>& norm_entries,
                                                                     double epsilon) {
  const at::Tensor o = o_rows.contiguous(), norm = norm_entries ? norm_entries->contiguous() : at::Tensor();
  const TensorRows gate = rows_of(gate_rows.value_or(at::Tensor())), grad = rows_of(grad_values);
  const int64_t width = o.size(2) * o.size(3), head_dim = o.size(3);
  const at::Tensor grad_o = at::empty(o.sizes(), o.options());
  const at::Tensor grad_gate = gate_rows ? at::empty(gate_rows->sizes(), o.options()) : at::empty({0}, o.options());
  const GatedOutputRows rows{.heads = o.size(2),
                             .head_dim = head_dim,
                             .epsilon = epsilon,
                             .o = o.const_data_ptr(),
                             .gate = gate.data(),
                             .gate_pitch = gate.pitch,
                             .norm = norm.defined() ? norm.const_data_ptr() : nullptr,
                             .values = nullptr,
                             .grad_values = grad.data(),
                             .grad_pitch = grad.pitch,
                             .grad_o = grad_o.mutable_data_ptr(),
                             .grad_gate = gate_rows ? grad_gate.mutable_data_ptr() : nullptr};
  const auto kernel = gated_output_kernels().backward[storage_index(o.scalar_type())];
  const auto run = [&](int64_t begin, int64_t end, void* grad_norm) {
    std::vector<double> scratch(head_dim);
    kernel(rows, begin, end, grad_norm, scratch.data());
  };
  if (norm_entries) return {grad_o, grad_gate, sum_over_rows(row_count(grad_values), width, norm.options(), run)};
  for_rows(row_count(grad_values), width, [&](int64_t begin, int64_t end) { run(begin, end, nullptr); });
  return {grad_o, grad_gate, at::empty({0}, o.options())};
}

}  // namespace lethe::cpu
