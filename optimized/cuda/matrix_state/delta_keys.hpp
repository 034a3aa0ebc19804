#pragma once
// What the kernels of the delta rule with a gate a row read and write (delta_keys_prepare.cuh, delta_keys_sweep.cuh).
//
// With D_ij the gates that separate tokens i and j of a chunk, of each row, γ_i those from the chunk's beginning to i, and D_Cj those from j to its
// end:
//
//   A_ij = Σ_κ D_ijκ k_iκ k_jκ  below the diagonal       P_ij = Σ_κ D_ijκ q_iκ k_jκ  up to it       W = (I + A β)⁻¹ A
//   X = V − (γ ∘ K) S       R = X − W (β ∘ X)       N = β ∘ R
//   O = scale · ((γ ∘ Q) S + P N)                    S ← γ_C ∘ S + (D_C ∘ K)ᵀ N

#include <cstdint>

#include "optimized/cuda/matrix_state/delta.hpp"
#include "optimized/cuda/matrix_state/tiles.cuh"

namespace lethe::matrix_state {

/// Bytes of the blocks of 16 × 16 on and below the diagonal of 64 × 64 numbers of 16 bits.
constexpr int kTriangle = kLowerBlocks * 32 * static_cast<int>(sizeof(uint4));
/// Where rows 8a … and columns 8b … of them are: 8 rows of 16 bytes, one after the other. Those of the same columns follow each other, the last rows
/// first.
__host__ __device__ constexpr int triangle_matrix(int a, int b) {
  const int j = b / 2;
  return 256 * (8 * j - j * (j - 1)) + b % 2 * (8 - 2 * j) * 128 + (7 - a) * 128;
}
static_assert(triangle_matrix(6, 7) + 128 == kTriangle);

/// Byte offsets of what is prepared of a chunk, of up to kRows rows. Tiles are images of shared memory, of float16: a token's row is divided by its
/// unit. A triangle is two numbers of bfloat16, the number rounded and what that leaves, in kTriangle bytes each.
template <int kRows>
struct DeltaKeyRecord {
  static constexpr int kTile = kRows / 64 * kPanel, kQuery = 0, kReadKey = kTile,
                       kWriteKey = 2 * kTile;                                                  // γ q, γ k, D_C k
  static constexpr int kInverse = 3 * kTile, kPairs = kInverse + 2 * kTriangle;                // −W, scale · P
  static constexpr int kTotals = kPairs + 2 * kTriangle;                                       // γ_C
  static constexpr int kKeyUnits = kTotals + kRows * 4, kQueryUnits = kKeyUnits + kChunk * 4,  // the second times scale
      kBeta = kQueryUnits + kChunk * 4, kBytes = kBeta + kChunk * 4;
};

/// What the sweeps of a backward leave, float16 by a warp of 16 columns, and what it is to be multiplied with. Operands are those of 32 lanes.
struct DeltaKeyArrays {
  uint4 *before, *after;  ///< Sᵀ before each chunk, its gradient after it: [B·H, chunks, warps, padded rows / 16, 32]
  uint4 *residual, *written;  ///< Rᵀ and the gradient of vᵀ: [B·H, chunks, warps, 4, 32]
  float *before_unit, *after_unit, *residual_unit, *written_unit;  ///< [B·H, chunks, warps]
  float* strength;  ///< [B·H, chunks, warps, 64]: what 16 columns give to the gradient of β
  int32_t*
      swept;  ///< [B·H, CTAs of a head]: chunks that a CTA has swept from the last token back, published; read on 9.0
};

/// Warps of 16 columns, those that only fill a tile of 64 among them.
__host__ __device__ constexpr int delta_key_warps(int columns) { return (columns + 63) / 64 * 4; }

/// A window of chunks of all heads.
struct DeltaKeyArguments {
  Operand query, key, value;  ///< [B, T, H, rows], the same, [B, T, H, columns]: in reverse the gradient of the values
  Operand gate;               ///< logarithms in float, [B, T, H, rows]
  Gates beta;
  float scale;
  int64_t length;
  int heads, rows, columns;
  int first_chunk, chunks;
  int stride;            ///< records of a head; backward: all chunks
  char* records;         ///< DeltaKeyRecords [B·H, stride], from the window's first one on
  const float* initial;  ///< [B, H, rows, columns]: the state before the window; null: zeros. In reverse
                         ///< the gradient of that after it
  float* last;           ///< the same after it; null: not wanted
  void* out;             ///< [B, T, H, columns] contiguous; in reverse the gradient of the value
  DeltaKeyArrays arrays;
  int all_heads, items;  ///< B·H; records of the window
  /// Preparing CTAs have the first `shared` records in turn, of chunk after chunk those of all heads, and the first `staying` of them, which begin
  /// first, the others.
  int shared, staying;
  int32_t* prepared;    ///< [B·H, stride]: whether a record is there, published; null: the sweep waits for all of them
  int last_rows_first;  ///< 1: records' γ q and γ k have the last 8 rows first; each 8 and each 64 columns are as ever
};

struct DeltaKeyGradients {
  Operand query, key, grad_values, gate;
  Gates beta;
  float scale;
  int64_t length;
  int heads, rows, columns, chunks;
  int sweeps;                    ///< CTAs that sweep a head
  void *grad_query, *grad_key;   ///< [B, T, H, rows] contiguous
  float *grad_gate, *grad_beta;  ///< [B, T, H, rows], [B, T, H] contiguous
  DeltaKeyArrays arrays;
};

}  // namespace lethe::matrix_state
