#pragma once
// The operators on the CPU, after their arguments were checked: kernels for each instruction set, threads of Torch's pool.

#include "optimized/operators/attention.hpp"
#include "optimized/operators/matrix_state.hpp"

namespace lethe::cpu {

/// Forgetting Attention; lethe::forgetting_attention (optimized/torch/forgetting_attention.hpp) has equation, shapes, cost and numerics.
///
/// returns  boundary in blocks of 64 keys
/// throws   c10::Error where a log_forget is positive or NaN, or a logit_bound negative or NaN
AttentionOutputs forgetting_attention_forward(const AttentionInputs& inputs);

/// The gradients of forgetting_attention_forward's values, over the pairs that it visited.
AttentionGradients forgetting_attention_backward(const at::Tensor& grad_values, const AttentionInputs& inputs,
                                                 const AttentionOutputs& outputs);

/// The matrix state; lethe::gated_state and delta_state (optimized/torch/matrix_state.hpp) have equations, shapes, cost and numerics.
///
/// throws   c10::Error where a gate's logarithm is positive or NaN, or a beta negative or NaN
MatrixStateOutputs matrix_state_forward(const MatrixStateInputs& inputs);

/// The gradients of matrix_state_forward's values and state.
MatrixStateGradients matrix_state_backward(const at::Tensor& grad_values, const at::Tensor& grad_state,
                                           const MatrixStateInputs& inputs);

}  // namespace lethe::cpu
