#pragma once
// attention_inputs on CUDA: raw device pointers, no Torch. Each call runs on the given stream, allocates nothing and never synchronises; equal calls
// give equal bits (no atomics).
//
// bfloat16 and float16 with head dims 16, 32, 64, 128 and 256, whose rows are at multiples of 16 bytes: eight columns of a head a thread, each
// product read once. All else: a warp a head, by single elements.
//
// throws   std::runtime_error for a CUDA error

#include <cuda_runtime_api.h>

#include <cstddef>

#include "optimized/layers/attention_inputs.hpp"

namespace lethe::layers {

void attention_inputs(const AttentionInputs& call, cudaStream_t stream);

/// Bytes of the sums over tokens, a row a block: under 1 % of the gradients for long texts.
size_t attention_inputs_workspace_bytes(const AttentionInputs& call);

/// reads  workspace  attention_inputs_workspace_bytes, 256-byte aligned
void attention_inputs_backward(const AttentionInputs& call, void* workspace, cudaStream_t stream);

}  // namespace lethe::layers
