#pragma once
// The operators in ATen calls, after their arguments were checked: on any device, in every dtype and shape, without waiting for the device.

#include "optimized/operators/attention.hpp"
#include "optimized/operators/matrix_state.hpp"

namespace lethe::portable {

/// Forgetting Attention in a few ATen calls a tile of queries. Pruned blocks are masked, not skipped.
///
/// returns   boundary in blocks of 128 keys
/// numerics  float32 (float64 for float64) products; prefix sums and D in float64
/// cost      4·B·Hq·Tq·Tk·D flops, O(B·Hq·128·Tk) memory
AttentionOutputs forgetting_attention_forward(const AttentionInputs& inputs);

/// The gradients of forgetting_attention_forward's values.
AttentionGradients forgetting_attention_backward(const at::Tensor& grad_values, const AttentionInputs& inputs,
                                                 const AttentionOutputs& outputs);

/// The matrix state in a few ATen calls a token.
///
/// numerics  float64, rounded once
/// cost      about six launches a token; the tensors' sizes decide nothing until they fill the device
MatrixStateOutputs matrix_state_forward(const MatrixStateInputs& inputs);

/// The gradients of matrix_state_forward's values and state.
///
/// cost      about twenty launches a token; states at every 64th token and at the 64 tokens in hand, float64
MatrixStateGradients matrix_state_backward(const at::Tensor& grad_values, const at::Tensor& grad_state,
                                           const MatrixStateInputs& inputs);

}  // namespace lethe::portable
