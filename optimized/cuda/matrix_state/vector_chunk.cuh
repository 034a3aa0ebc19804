#pragma once
// What the kernels of vector_gradient.cuh share: their arguments, the tile of a CTA, copies of rows, and the gates of 64 tokens.

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/vector_parts.cuh"

namespace lethe::matrix_state {

/// Of vector_states and vector_gradient. A tile is row_tile_of(rows) rows of a head's state.
struct VectorGradientArguments {
  Operand query, key, value, grad_values, key_gate;
  void *grad_query, *grad_key;          ///< [B, T, H, rows] contiguous; grad_query null: not wanted
  float *grad_key_gate, *grad_initial;  ///< the same; [B, H, rows, columns], null: not wanted
  int64_t length;
  int batch, heads, rows, columns;
  float scale;
  int64_t row_stride, column_stride;  ///< of the three states
  const char*
      pairs;  ///< with a gate a column: PairRecords [B·H, chunks]; value and grad_values are then v and dO with those gates
  const float *initial, *grad_last;  ///< [B, H, rows, columns]; null: zeros
  /// S before each chunk and R after it, as left operands: [tiles, B·H, chunks, warp, padded columns / 16, lane]
  uint4 *states, *grad_states;
  /// `states`, `grad_states` are left operands of Sᵀ, of Rᵀ, with rows and columns exchanged: bfloat16 alone, whose states have no unit
  bool transposed, grad_transposed;
  float *state_units, *grad_units;  ///< [tiles, B·H, chunks, warp]: the powers of two that float16's are divided by
  /// How many chunks' S are there, [tiles, B·H], and how many chunks' R, from the last one on, [B·H, tiles of columns]; zero before their kernels
  /// begin. Null: a kernel that reads them begins when these have ended
  int32_t *state_marks, *grad_marks;
};

/// Bytes of what vector_pairs leaves of a chunk: B as a tile of 64 × 64 lies in shared memory, B_ii, the powers of two that four times 16 rows of B
/// are divided by, and E_C of up to 128 columns.
struct PairRecord {
  static constexpr int kDiagonal = kTokens * kTokens * 2, kUnits = kDiagonal + kTokens * 4, kTotals = kUnits + 16,
                       kEnd = kTotals + 128 * 4, kBytes = (kEnd + 127) / 128 * 128;
  /// Whether the 16 bytes at `at` hold anything: of B those of blocks up to the diagonal do.
  __device__ __forceinline__ static bool used(int at) {
    const int row = at / (kTokens * 2), piece = (at / 16 ^ row) & 7;
    return at >= kDiagonal || piece / 2 <= row / kBlock;
  }
};

/// The columns that an instance for `columns` has.
__host__ __device__ constexpr int padded_columns(int64_t columns) {
  return columns <= 32 ? 32 : columns <= 64 ? 64 : 128;
}

/// Bytes between the gates of two tokens in shared memory: tokens 2t and rows g of a fragment are in different banks.
template <int kRows>
inline constexpr int kGateStride = (kRows + 4) * 4;

/// What a CTA of any of these kernels is: a tile of kRows rows of a head, and perhaps one of its chunks.
struct RowTile {
  int64_t head, b, h, index;  ///< index: of the tile and head
  int row;
  int chunks, chunk;
  __device__ __forceinline__ int64_t first() const { return static_cast<int64_t>(chunk) * kTokens; }
};

/// CTA `index` of all tiles and heads.
template <int kRows>
__device__ inline RowTile row_tile(const VectorGradientArguments& p, unsigned index, int chunk) {
  const unsigned tiles = (p.rows + kRows - 1) / kRows, tile = index % tiles, head = index / tiles, heads = p.heads;
  return {head,
          head / heads,
          head % heads,
          static_cast<int64_t>(tile) * p.batch * p.heads + head,
          static_cast<int>(tile) * kRows,
          static_cast<int>((p.length + kTokens - 1) / kTokens),
          chunk};
}

/// Calls work with each of a warp's blocks of 16 tokens of a chunk: one of four, or two whose pairs with the tokens before them are as many for both
/// warps.
template <int kWarps, typename Work>
__device__ __forceinline__ void each_block(int warp, Work work) {
  static_assert(kWarps == 2 || kWarps == 4);
#pragma unroll 1
  for (int i = 0; i < 4 / kWarps; ++i) work(i == 0 ? warp : 3 - warp);
}

/// A warp copies 16 tokens of an operand, kPieces of 16 bytes a row, from `column` on; zeros past the end.
template <int kElement, int kPieces, typename At>
__device__ __forceinline__ void copy_rows(const Operand& from, const RowTile& place, int64_t first, int64_t length,
                                          int column, int columns, int lane, At at) {
  constexpr int kRowsAtOnce = 32 / kPieces, kElements = 16 / kElement;
  const int piece = lane % kPieces;
  const char* const begin = static_cast<const char*>(from.data) +
                            (place.b * from.batch_stride + place.h * from.head_stride + column) * kElement;
  const int64_t step = kRowsAtOnce * from.token_stride * kElement;
  int64_t token = first + lane / kPieces;
  const char* source = begin + token * from.token_stride * kElement + piece * 16;
  if (first + kBlock <= length && column + kPieces * kElements <= columns) {
#pragma unroll
    for (int i = 0; i < kBlock; i += kRowsAtOnce, source += step) ptx::copy_chunk(at(lane / kPieces, piece, i), source);
    return;
  }
  const bool inside = column + piece * kElements < columns;
#pragma unroll 1
  for (int i = 0; i < kBlock; i += kRowsAtOnce, token += kRowsAtOnce, source += step) {
    const bool valid = inside && token < length;
    ptx::copy_chunk(at(lane / kPieces, piece, i), valid ? source : begin, valid);
  }
}

/// Where a warp's 16 rows of tile `tile` are, of kWidth columns: for copy_rows.
template <int kWidth>
__device__ __forceinline__ auto tile_rows(uint32_t tile, int first) {
  return [tile, first](int row, int piece, int further) {
    return rows_below<kWidth>(tile + ptx::swizzled_chunk<kWidth>(first + row, piece), further);
  };
}

/// The gates of 8 tokens and two rows, and their products over runs: token 2t + e of row g + 8h at [2h + e]; t of the lane.
struct EightGates {
  float f[4], other_two[2], other_four[2], eight[2];

  /// Completes what follows from f.
  __device__ __forceinline__ void multiply() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float two = f[2 * h] * f[2 * h + 1];
      other_two[h] = __shfl_xor_sync(kEveryLane, two, 1);
      const float four = two * other_two[h];
      other_four[h] = __shfl_xor_sync(kEveryLane, four, 2);
      eight[h] = four * other_four[h];
    }
  }
  /// The gates from the beginning of the run of 2, 4 or 8 up to and with the token's own; and those after it to the run's end.
  __device__ __forceinline__ float up_two(int i) const { return i % 2 ? f[i - 1] * f[i] : f[i]; }
  __device__ __forceinline__ float down_two(int i) const { return i % 2 ? 1.0f : f[i + 1]; }
  __device__ __forceinline__ float up_four(int i, bool upper2) const {
    return up_two(i) * (upper2 ? other_two[i / 2] : 1.0f);
  }
  __device__ __forceinline__ float down_four(int i, bool upper2) const {
    return down_two(i) * (upper2 ? 1.0f : other_two[i / 2]);
  }
  __device__ __forceinline__ float up(int i, bool upper2, bool upper4) const {
    return up_four(i, upper2) * (upper4 ? other_four[i / 2] : 1.0f);
  }
  __device__ __forceinline__ float down(int i, bool upper2, bool upper4) const {
    return down_four(i, upper2) * (upper4 ? 1.0f : other_four[i / 2]);
  }
};

/// Of a chunk's runs of 8 tokens and two rows the products of all gates, and from them a token's factors: from those in its eight (EightGates) to
/// those in its run of 16, 32 and 64 tokens. Block m has 16 tokens, i is its first or second eight.
struct ChunkProducts {
  float eight[8][2];
  __device__ __forceinline__ float sixteen(int m, int h) const { return eight[2 * m][h] * eight[2 * m + 1][h]; }
  __device__ __forceinline__ float half_chunk(int half, int h) const {
    return sixteen(2 * half, h) * sixteen(2 * half + 1, h);
  }
  __device__ __forceinline__ float up16(int m, int i, int h) const { return i ? eight[2 * m][h] : 1.0f; }
  __device__ __forceinline__ float down16(int m, int i, int h) const { return i ? 1.0f : eight[2 * m + 1][h]; }
  __device__ __forceinline__ float up32(int m, int i, int h) const {
    return up16(m, i, h) * (m % 2 ? sixteen(m - 1, h) : 1.0f);
  }
  __device__ __forceinline__ float down32(int m, int i, int h) const {
    return down16(m, i, h) * (m % 2 ? 1.0f : sixteen(m + 1, h));
  }
  __device__ __forceinline__ float up64(int m, int i, int h) const {
    return up32(m, i, h) * (m / 2 ? half_chunk(0, h) : 1.0f);
  }
  __device__ __forceinline__ float down64(int m, int i, int h) const {
    return down32(m, i, h) * (m / 2 ? 1.0f : half_chunk(1, h));
  }
};

}  // namespace lethe::matrix_state
