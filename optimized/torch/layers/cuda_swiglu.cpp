#include <torch/library.h>

#include <vector>

#include "optimized/torch/layers/cuda_calls.hpp"

namespace lethe::cuda {
namespace {

at::Tensor swiglu_forward(const at::Tensor& gate_and_up) {
  const c10::cuda::CUDAGuard device(gate_and_up.device());
  const TensorRows given = rows_of(gate_and_up);
  std::vector<int64_t> sizes = gate_and_up.sizes().vec();
  sizes.back() /= 2;
  const at::Tensor values = at::empty(sizes, gate_and_up.options());
  layers::swiglu({.rows = row_count(values),
                  .width = sizes.back(),
                  .dtype = dtype_of(values.scalar_type()),
                  .gate_and_up = device_rows(given),
                  .values = values.mutable_data_ptr(),
                  .stream = at::cuda::getCurrentCUDAStream()});
  return values;
}

at::Tensor swiglu_backward(const at::Tensor& grad_values, const at::Tensor& gate_and_up) {
  const c10::cuda::CUDAGuard device(gate_and_up.device());
  const TensorRows given = rows_of(gate_and_up), grad = rows_of(grad_values);
  const at::Tensor grad_gate_and_up = at::empty(gate_and_up.sizes(), gate_and_up.options());
  layers::swiglu_backward({.rows = row_count(grad_values),
                           .width = grad_values.size(-1),
                           .dtype = dtype_of(gate_and_up.scalar_type()),
                           .grad_values = device_rows(grad),
                           .gate_and_up = device_rows(given),
                           .grad_gate_and_up = grad_gate_and_up.mutable_data_ptr(),
                           .stream = at::cuda::getCurrentCUDAStream()});
  return grad_gate_and_up;
}

TORCH_LIBRARY_IMPL(lethe, CUDA, library) {
  library.impl("_swiglu_forward", swiglu_forward);
  library.impl("_swiglu_backward", swiglu_backward);
}

}  // namespace
}  // namespace lethe::cuda
