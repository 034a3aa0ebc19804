#pragma once

#include "optimized/layers/attention_inputs.hpp"

namespace lethe::cpu {

/// Tokens of one sequence in one chunk, a piece of work. Chunks are counted over all sequences.
constexpr int64_t kAttentionInputsChunk = 64;

/// Where a chunk's sums over tokens begin, in wide numbers: the gradients of the parts' norms, and of the gate's bias.
struct ChunkSums {
  int64_t norms[3], bias, size;
};

/// The chunks from `begin` to `end`, for each dtype.
struct AttentionInputsKernels {
  /// scratch: head_dim wide numbers
  void (*forward[4])(const layers::AttentionInputs&, int64_t begin, int64_t end, void* scratch);
  /// scratch: (2 + heads) · head_dim wide numbers; sums: places.size wide numbers a chunk, zero before
  void (*backward[4])(const layers::AttentionInputs&, int64_t begin, int64_t end, void* scratch,
                      const ChunkSums& places, void* sums);
};
const AttentionInputsKernels& attention_inputs_kernels();

}  // namespace lethe::cpu
