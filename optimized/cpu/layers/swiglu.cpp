#include <ATen/ops/empty.h>

#include <vector>

#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/layers/layers.hpp"
#include "optimized/cpu/layers/rows.hpp"
#include "optimized/cpu/layers/swiglu_kernels.hpp"
#include "optimized/operators/rows.hpp"

namespace lethe::cpu {

LETHE_CHOICE(SwigluKernels, swiglu_kernels)

at::Tensor swiglu_forward(const at::Tensor& gate_and_up) {
  const TensorRows given = rows_of(gate_and_up);
  std::vector<int64_t> sizes = gate_and_up.sizes().vec();
  const int64_t width = sizes.back() /= 2;
  const at::Tensor values = at::empty(sizes, gate_and_up.options());
  const SwigluRows rows{width, given.data(), given.pitch, nullptr, 0, values.mutable_data_ptr()};
  const auto kernel = swiglu_kernels().forward[storage_index(gate_and_up.scalar_type())];
  for_rows(row_count(values), width, [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return values;
}

at::Tensor swiglu_backward(const at::Tensor& grad_values, const at::Tensor& gate_and_up) {
  const TensorRows given = rows_of(gate_and_up), grad = rows_of(grad_values);
  const at::Tensor grad_gate_and_up = at::empty(gate_and_up.sizes(), gate_and_up.options());
  const int64_t width = grad_values.size(-1);
  const SwigluRows rows{width, given.data(), given.pitch, grad.data(), grad.pitch, grad_gate_and_up.mutable_data_ptr()};
  const auto kernel = swiglu_kernels().backward[storage_index(gate_and_up.scalar_type())];
  for_rows(row_count(grad_values), width, [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
  return grad_gate_and_up;
}

}  // namespace lethe::cpu
