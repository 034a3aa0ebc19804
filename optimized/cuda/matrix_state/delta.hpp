#pragma once
// What the passes of the delta rule read and write (delta_forward.cuh, delta_reverse.cuh, delta_gradients.cuh).

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "optimized/cuda/matrix_state/sweep.hpp"
#include "optimized/kept_states.hpp"

namespace lethe::matrix_state {

/// Below compute capability 9.0: threads of a pass over the chunks, four warps for 64 columns of the state and four that prepare the next chunk for
/// them; and stages of tiles in shared memory.
constexpr int kDeltaThreads = 2 * kComputing, kDeltaStages = 2;
/// CTAs for a head's columns, of groups of 64.
__host__ __device__ constexpr int delta_ctas(int columns, int groups) {
  return (columns + 64 * groups - 1) / (64 * groups);
}
/// Blocks of 16 × 16 numbers on and below the diagonal of a chunk's square.
constexpr int kLowerBlocks = kWarps * (kWarps + 1) / 2;

__host__ __device__ constexpr int lower_block(int row, int column) { return row * (row + 1) / 2 + column; }
/// The row of such a block.
__host__ __device__ constexpr int row_of_lower_block(int number) { return (number >= 1) + (number >= 3) + (number >= 6); }

/// Of a chunk's keys, by wgmma: powers of two below their largest numbers, and |k|.
struct ChunkKeys {
  float unit[kChunk], norm[kChunk];
};

/// inverse_parts() of a type (kept_states.hpp).
template <typename Element>
inline constexpr int kInverseParts = inverse_parts(std::is_same_v<Element, __half> ? Dtype::kFloat16
                                                                                   : Dtype::kBFloat16);

/// Arrays between the passes of a backward, of each head and chunk; those of a state's columns, of each tile of 64 columns first. Tiles are images of
/// shared memory, 64 rows of 128 bytes in the order of tile_piece. By wgmma a forward may leave S, r, Wᵀ and the keys' numbers (kept_states.hpp).
struct DeltaArrays {
  uint4*
      inverse;  ///< Wᵀ by blocks, each a left operand of 32 lanes; by wgmma a chunk's kInverseParts next to each other
  uint4 *before, *after;  ///< S before the chunk, R after it: one tile every 64 rows
  float *before_unit, *after_unit;
  uint4 *residual, *written;            ///< r, and the gradient of n
  float *residual_unit, *written_unit;  ///< of each token
  float* gate_share;                    ///< [B, T, H]: what columns from 64 on of the keys share in grad_gate, by wgmma
  // [B·H, CTAs of a head], published by the CTAs of the sweeps by wgmma, zeros before those start that read them:
  int32_t* stored;  ///< 1 when all states and residuals are written; null: before the backward
  int32_t* swept;   ///< chunks that are swept from the last token back; next to `stored`
  ChunkKeys* keys;  ///< where a forward leaves them; else null
};

struct DeltaArguments {
  Operand query, key,
      other;         ///< [B, T, H, rows], the same, [B, T, H, columns]: the value, in reverse its result's gradient
  Gates gate, beta;  ///< no gate: null
  float scale;
  int64_t length;
  int batch, heads, rows, columns;
  const float*
      initial;  ///< [B, H, rows, columns]: the state before the first token, in reverse the gradient after the last; null: zeros
  float* last;  ///< the same at the other end; null: not wanted
  void* out;    ///< [B, T, H, columns] contiguous: the values read, in reverse the gradient of the value
  DeltaArrays arrays;
};

struct DeltaGradients {
  Operand query, key, grad_values;
  Gates gate, beta;
  float scale;
  int64_t length;
  int batch, heads, rows, columns;
  void *grad_query, *grad_key;   ///< [B, T, H, rows] contiguous
  float *grad_gate, *grad_beta;  ///< [B, T, H] contiguous; grad_gate null: no gate
  DeltaArrays arrays;
};

}  // namespace lethe::matrix_state
