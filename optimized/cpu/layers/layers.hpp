#pragma once
// The layers' operators on the CPU, after their arguments were checked (optimized/torch/layers.hpp): kernels for each instruction set, threads of
// Torch's pool. Equal calls give equal bits with any number of threads.

#include <ATen/core/Tensor.h>

namespace lethe::cpu {

at::Tensor swiglu_forward(const at::Tensor& gate_and_up);
at::Tensor swiglu_backward(const at::Tensor& grad_values, const at::Tensor& gate_and_up);

}  // namespace lethe::cpu
