#pragma once
// What the delta rule by wgmma reads and writes: no gate or one a token, a state of at most 128 rows, on compute capability 9.0. Shapes as
// in delta.hpp, whose equations these kernels compute.

#include "optimized/cuda/matrix_state/delta.hpp"

namespace lethe::matrix_state {

/// W of a chunk, which no state enters: so all chunks are solved at once, before the sweep.
struct alignas(16) SolvedChunk {
  uint4 inverse[kLowerBlocks * 32];  ///< W β by blocks, each a left operand of 32 lanes, rows divided by their units
  float unit[kChunk];                ///< of its rows
  float key_unit[kChunk];            ///< as ChunkKeys
  float key_norm[kChunk];
};

struct DeltaTokens;

/// W of all chunks, a warp each in turn; or beside the sweep (delta_solve_beside.cuh) those of a number of all heads together: all CTAs solve in turn, `rounds`
/// times each warp; then the first `staying` ones go on, and leave the places of the others to the sweep.
struct DeltaSolveArguments {
  CUtensorMap map;  ///< of key
  Operand key;      ///< [B, T, H, rows]
  Gates gate, beta;
  int64_t length;
  int heads, chunks;    ///< chunks of a head
  SolvedChunk* solved;  ///< [B·H, chunks]
  DeltaTokens* tokens;  ///< [B·H, chunks]: gates and strengths, of more than 64 rows
  uint4* transposed;    ///< Wᵀ as in DeltaArrays; null: not wanted
  int32_t* cleared;     ///< so many marks of DeltaArrays get 0
  unsigned marks;
  // Beside the sweep:
  int32_t* ready;  ///< [B·H, chunks]: 1 when the chunk is solved
  int all_heads, rounds, staying;
};

/// A CTA: a head and kGroups times 64 columns. From the last token back, the value is the result's gradient, and its result the value's gradient.
struct DeltaSweepArguments {
  CUtensorMap maps[4];  ///< of query, key, value, and of the result in 16 rows
  Operand query, key, value;
  Gates gate, beta;
  float scale;
  int64_t length;
  int heads, all_heads, chunks, rows, columns;  ///< all_heads: B·H
  const SolvedChunk* solved;
  const DeltaTokens* tokens;  ///< as in DeltaSolveArguments
  const float* initial;       ///< [B, H, rows, columns] contiguous; null: zeros
  float* last;                ///< the same; null: not wanted
  DeltaArrays arrays;         ///< where it keeps S and r for a backward, of a forward the keys' numbers too; R and dN̄
  const int32_t* ready;       ///< as in DeltaSolveArguments; null: all is solved before
  const float* chunk_keys;    ///< back: ChunkKeys [B·H, chunks], of `solved` or what a forward left
  int keys_stride;            ///< floats from one to the next
};

/// The gradients inside all chunks: a CTA one and 64 columns of the keys.
struct DeltaChunkGradients {
  CUtensorMap maps[5];  ///< of query, key, grad_values; of grad_query and grad_key in 16 rows
  Operand query, key, grad_values;
  Gates gate, beta;
  float scale;
  int64_t length, all_chunks;                   ///< all_chunks: of all heads
  int heads, all_heads, chunks, rows, columns;  ///< all_heads: B·H
  float *grad_gate, *grad_beta;                 ///< [B, T, H] contiguous; grad_gate null: no gate
  DeltaArrays arrays;
};

}  // namespace lethe::matrix_state
