#pragma once
// A matrix product whose weight gradient goes straight into the optimizer's buffer.

#include <ATen/core/Tensor.h>

namespace lethe {

/// y = x Wᵀ. Its backward returns dx = dy W and adds dW = dyᵀ x to `gradient`, in place and before it returns; the weight itself has no autograd
/// history. Several uses and micro-batches add up.
///
/// reads    x [..., n]; weight [m,n] in the dtype of x; gradient [m,n] float32, or the dtype of x
/// returns  [..., m] in the dtype of x; differentiable once, in x
/// throws   c10::Error "name: expected …, found …" for another shape, dtype or device; c10::NotImplementedError in a backward with create_graph
/// cost     2·N·m·n FLOPs forward, 4·N·m·n backward; no copy of dW
/// numerics dW is accumulated in float32 by the product itself on CUDA, and rounded to the dtype of x before it is added on a CPU
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gradient);

/// linear(swiglu(gate_and_up), weight, gradient), whose backward computes swiglu(gate_and_up) again instead of keeping it.
///
/// reads    gate_and_up [..., 2n]
/// throws   as linear
/// cost     as linear and swiglu, and one more swiglu backward; keeps gate_and_up alone
at::Tensor linear_of_swiglu(const at::Tensor& gate_and_up, const at::Tensor& weight, const at::Tensor& gradient);

}  // namespace lethe
