#pragma once
// The matrix state in a few ATen calls a token: for every device without kernels of ours.

#include <ATen/core/Tensor.h>

#include <tuple>

#include "optimized/torch/matrix_state_arguments.hpp"

namespace lethe::portable {

/// lethe::_matrix_state_forward on any device, without waiting for it.
///
/// returns   values, state
/// numerics  float64, rounded once
/// cost      about six launches a token; the tensors' sizes decide nothing until they fill the device
std::tuple<at::Tensor, at::Tensor> matrix_state_forward(const MatrixStateInputs& inputs);

/// lethe::_matrix_state_backward likewise: ∂query, ∂key, ∂value, ∂log_key_gate, ∂log_value_gate, ∂beta, ∂state; of what is absent, an
/// empty tensor.
///
/// cost      about twenty launches a token; states at every 64th token and at the 64 tokens in hand, float64
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> matrix_state_backward(
    const at::Tensor& grad_values, const at::Tensor& grad_state, const MatrixStateInputs& inputs);

}  // namespace lethe::portable
