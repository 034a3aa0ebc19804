#pragma once
// Forgetting Attention on our CUDA kernels, for arguments that were checked and that unsupported() has accepted. Built with LETHE_CUDA only.

#include "optimized/operators/attention.hpp"

namespace lethe::cuda {

/// lethe::forgetting_attention (forgetting_attention.hpp) on the current stream of the query's device.
///
/// returns  boundary in blocks of 128 keys
AttentionOutputs forgetting_attention_forward(const AttentionInputs& inputs);

/// The gradients of forgetting_attention_forward's values.
AttentionGradients forgetting_attention_backward(const at::Tensor& grad_values, const AttentionInputs& inputs,
                                                 const AttentionOutputs& outputs);

}  // namespace lethe::cuda
