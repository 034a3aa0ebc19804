#pragma once
// Forgetting Attention by a CUDA kernel family, for arguments that were checked and that the family covers. Built with LETHE_CUDA only.

#include "optimized/operators/attention.hpp"

namespace lethe {
struct AttentionFamily;  // optimized/cuda/attention.hpp
}

namespace lethe::cuda {

/// lethe::forgetting_attention (forgetting_attention.hpp) on the current stream of the query's device.
///
/// returns  boundary in blocks of 128 keys
AttentionOutputs forgetting_attention_forward(const AttentionFamily& family, const AttentionInputs& inputs);

/// The gradients of forgetting_attention_forward's values.
///
/// reads    handover, with query_sums for a family that leaves them, and key and value dims both 64 or both 128, alone
AttentionGradients forgetting_attention_backward(const AttentionFamily& family, const at::Tensor& grad_values,
                                                 const AttentionInputs& inputs, const AttentionOutputs& outputs,
                                                 const AttentionHandover& handover);

}  // namespace lethe::cuda
