#pragma once
// The delta rule's parts: rows as float16 times powers of two, and products with operands weighted by column.
//
// What a product reads in 16 bits is float16, whatever the inputs' type. Each row of a tile is divided by a power of two, its unit, below its largest
// number, so that nothing overflows, and no token's rounding depends on a later one.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/delta.hpp"
#include "optimized/cuda/matrix_state/tiles.cuh"
#include "optimized/cuda/matrix_state/units.cuh"
#include "optimized/cuda/ptx/mma.cuh"
#include "optimized/cuda/ptx/shared.cuh"

namespace lethe::matrix_state {

/// Named barriers: of the warps that prepare, of these where two rows of blocks of W are complete, and of the warps of each 64 columns of the state.
enum DeltaBarrier { kPrepareBarrier = 1, kFirstRowBarrier, kSecondRowBarrier, kStateBarrier };

/// Bytes of the blocks of a lower triangle as left operands.
constexpr int kFragments = kLowerBlocks * 32 * sizeof(uint4);
/// A sum of 16 rows × 64 columns: of lane 4g + t, tile c, number e: row g + 8·(e / 2), column 8c + 2t + e % 2.
using Sums = float[8][4];

// A lane's addresses in a tile, which begins at a multiple of 1024: that of the first piece, and of others by its bits. What changes with the chunk
// comes first, so that few addresses outlive it.
__device__ __forceinline__ uint32_t at_piece(uint32_t address, int piece) { return address ^ piece << 4; }

/// Rows lane % 16, pieces lane / 16: a left operand's, or a transposed right one's.
__device__ __forceinline__ uint32_t rows_address(uint32_t tile, int block, int lane) {
  return tile + block * 2048 + lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4);
}
/// Rows lane % 8 and those 8 further, pieces lane / 8 % 2: a right operand's whose columns are rows of the tile, or a transposed left one's.
__device__ __forceinline__ uint32_t columns_address(uint32_t tile, int block, int lane) {
  return tile + block * 2048 + (lane % 8 + lane / 16 * 8) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4);
}
/// Row g and number 2t of a block's sums.
__device__ __forceinline__ uint32_t sums_address(uint32_t tile, int block, int lane) {
  return tile + block * 2048 + lane / 4 * 128 + (lane / 4 << 4) + lane % 4 * 4;
}

__device__ __forceinline__ void load_left(uint32_t (&a)[4], uint32_t tile, int block, int k, int lane) {
  ptx::load_matrices(a, at_piece(rows_address(tile + k / 4 * kPanel, block, lane), 2 * (k % 4)));
}
/// The transpose of tokens 16k … 16k + 15, columns 16·block … of a tile.
__device__ __forceinline__ void load_transposed_left(uint32_t (&a)[4], uint32_t tile, int k, int block, int lane) {
  ptx::load_matrices_transposed(a, at_piece(columns_address(tile + block / 4 * kPanel, k, lane), 2 * (block % 4)));
}
/// Rows 16k … 16k + 15, columns 16c … of a tile, as right operands of two sums.
__device__ __forceinline__ void load_right_rows(uint32_t (&b)[4], uint32_t tile, int k, int c, int lane) {
  ptx::load_matrices_transposed(b, at_piece(rows_address(tile, k, lane), 2 * c));
}
/// Columns 16k … 16k + 15, rows 16j … of a tile, as right operands of two sums whose columns are its rows.
__device__ __forceinline__ void load_right_columns(uint32_t (&b)[4], uint32_t tile, int k, int j, int lane) {
  ptx::load_matrices(b, at_piece(columns_address(tile + k / 4 * kPanel, j, lane), 2 * (k % 4)));
}

// Products here are of whole tiles, above the diagonal too: in code without branches what a product reads comes while the one before it is computed.

/// sums += A Bᵀ over 16·kSteps columns: A the 16 rows `block` of `left`, B the rows of `right`.
template <int kSteps>
__device__ __forceinline__ void multiply_rows(Sums& sums, uint32_t left, uint32_t right, int block, int lane) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t a[4];
    load_left(a, left, block, k, lane);
#pragma unroll
    for (int j = 0; j < kWarps; ++j) {
      uint32_t b[4];
      load_right_columns(b, right, k, j, lane);
      ptx::multiply_add<__half>(sums[2 * j], a, b[0], b[1]);
      ptx::multiply_add<__half>(sums[2 * j + 1], a, b[2], b[3]);
    }
  }
}

__device__ __forceinline__ void scale_rows(Sums& sums, const float (&factor)[2]) {
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[c][e] *= factor[e / 2];
}

/// The same with two left operands, whose right ones are loaded once.
template <int kSteps>
__device__ __forceinline__ void multiply_rows(Sums& sums, Sums& others, uint32_t left, uint32_t other, uint32_t right,
                                              int block, int lane) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t a[4], c[4];
    load_left(a, left, block, k, lane);
    load_left(c, other, block, k, lane);
#pragma unroll
    for (int j = 0; j < kWarps; ++j) {
      uint32_t b[4];
      load_right_columns(b, right, k, j, lane);
      ptx::multiply_add<__half>(sums[2 * j], a, b[0], b[1]);
      ptx::multiply_add<__half>(sums[2 * j + 1], a, b[2], b[3]);
      ptx::multiply_add<__half>(others[2 * j], c, b[0], b[1]);
      ptx::multiply_add<__half>(others[2 * j + 1], c, b[2], b[3]);
    }
  }
}

/// sums += left · rows 16k … 16k + 15 of a tile of 64 columns.
__device__ __forceinline__ void add_rows(Sums& sums, const uint32_t (&left)[4], uint32_t tile, int k, int lane) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t b[4];
    load_right_rows(b, tile, k, c, lane);
    ptx::multiply_add<__half>(sums[2 * c], left, b[0], b[1]);
    ptx::multiply_add<__half>(sums[2 * c + 1], left, b[2], b[3]);
  }
}

/// A left operand in float: numbers 0, 1 and 4, 5 of row g, the others of row g + 8.
struct Weighted {
  float x[8];

  /// `words` with each column multiplied by its factor: `factors` of the 16 columns.
  __device__ __forceinline__ Weighted(const uint4& words, const float* factors, int t) {
    const float2 near = *reinterpret_cast<const float2*>(factors + 2 * t),
                 far = *reinterpret_cast<const float2*>(factors + 2 * t + 8);
    const uint32_t of[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack<__half>(of[i]), w = i < 2 ? near : far;
      x[2 * i] = pair.x * w.x;
      x[2 * i + 1] = pair.y * w.y;
    }
  }

  __device__ __forceinline__ float largest(int half) const {
    const int i = 2 * half;
    return fmaxf(fmaxf(fabsf(x[i]), fabsf(x[i + 1])), fmaxf(fabsf(x[i + 4]), fabsf(x[i + 5])));
  }

  __device__ __forceinline__ void pack_to(uint32_t (&left)[4], const float (&factor)[2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) left[i] = pack<__half>(x[2 * i] * factor[i % 2], x[2 * i + 1] * factor[i % 2]);
  }
};

/// sums += outer · A B by rows, or −=: A 16 rows from `fragment(k)`, columns times `factors`; B the tile's rows. `outer` are powers of two. Meanwhile
/// rows are divided by units, which are not far below `own`, the size of the numbers that are there.
template <bool kSubtract, typename Fragment>
__device__ __forceinline__ void multiply_weighted(Sums& sums, const float (&outer)[2], const float (&own)[2],
                                                  const Fragment& fragment, const float* factors, uint32_t tile,
                                                  int lane) {
  float largest[2] = {0.0f, 0.0f};
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    const Weighted a(fragment(k), factors + 16 * k, lane % 4);
    largest[0] = fmaxf(largest[0], a.largest(0));
    largest[1] = fmaxf(largest[1], a.largest(1));
  }
  float unit[2], inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unit[half] = power_of_two_below(fmaxf(outer[half] * quad_max(largest[half]), own[half] * 0x1p-40f));
    inverse[half] = reciprocal_of_power(unit[half]);
  }
  scale_rows(sums, inverse);
#pragma unroll
  for (int half = 0; half < 2; ++half) inverse[half] *= kSubtract ? -outer[half] : outer[half];
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    uint32_t left[4];
    Weighted(fragment(k), factors + 16 * k, lane % 4).pack_to(left, inverse);
    add_rows(sums, left, tile, k, lane);
  }
  scale_rows(sums, unit);
}

/// Left operands of the 16 rows' tiles first … end − 1 of 16 columns, to `to`, a lane's place by k; each row divided by its unit.
template <typename Place>
__device__ __forceinline__ void store_fragments(const Sums& sums, float (&unit)[2], int first, int end,
                                                const Place& place) {
  float largest[2] = {0.0f, 0.0f};
#pragma unroll
  for (int c = 0; c < 8; ++c) {
#pragma unroll
    for (int e = 0; e < 4; ++e) largest[e / 2] = fmaxf(largest[e / 2], fabsf(sums[c][e]));
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unit[half] = power_of_two_below(quad_max(largest[half]));
    inverse[half] = reciprocal_of_power(unit[half]);
  }
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&x)[4] = sums[2 * k + i / 2];
      words[i] = pack<__half>(x[i % 2 * 2] * inverse[i % 2], x[i % 2 * 2 + 1] * inverse[i % 2]);
    }
    if (k >= first && k < end) *place(k) = {words[0], words[1], words[2], words[3]};
  }
}

/// Each row's largest number, as a power of two.
__device__ __forceinline__ void row_units(const Sums& sums, float (&unit)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x = 0.0f;
#pragma unroll
    for (int c = 0; c < 8; ++c) x = fmaxf(x, fmaxf(fabsf(sums[c][2 * half]), fabsf(sums[c][2 * half + 1])));
    unit[half] = power_of_two_below(quad_max(x));
  }
}

/// The sums times `factor`, packed to the rows of `block` of a tile.
template <typename Element>
__device__ __forceinline__ void store_rows(const Sums& sums, const float (&factor)[2], uint32_t tile, int block,
                                           int lane) {
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      ptx::store_word(at_piece(sums_address(tile, block, lane), c) + 1024 * half,
                      pack<Element>(sums[c][2 * half] * factor[half], sums[c][2 * half + 1] * factor[half]));
}

/// This warp's 16 rows of a tile become float16 divided by their units.
template <typename Element, int kPanels>
__device__ __forceinline__ void normalize_rows(uint32_t tile, float* units, int block, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 16 * block + 4 * i + lane / 8;
    uint4 pieces[kPanels];
    float largest = 0.0f;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      pieces[panel] = ptx::load_words(tile + tile_piece(row, 8 * panel + lane % 8));
      const uint32_t words[4] = {pieces[panel].x, pieces[panel].y, pieces[panel].z, pieces[panel].w};
#pragma unroll
      for (uint32_t word : words) {
        const float2 pair = unpack<Element>(word);
        largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
      }
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    const float unit = power_of_two_below(largest), inverse = reciprocal_of_power(unit);
    const auto scaled = [&](uint32_t word) {
      const float2 pair = unpack<Element>(word);
      return pack<__half>(pair.x * inverse, pair.y * inverse);
    };
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const uint4& x = pieces[panel];
      ptx::store_words(tile + tile_piece(row, 8 * panel + lane % 8),
                       {scaled(x.x), scaled(x.y), scaled(x.z), scaled(x.w)});
    }
    if (lane % 8 == 0) units[row] = unit;
  }
}

/// This warp's 16 rows of a tile of `columns` to a tensor [B, T, H, width] of 16-bit numbers: `to` is element (first token of the chunk, column 0).
__device__ __forceinline__ void write_rows(char* to, int64_t token_bytes, int64_t tokens, int columns, uint32_t tile,
                                           int block, int lane) {
  const int piece = lane % 8;
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const int row = 16 * block + i + lane / 8;
    const uint4 words = ptx::load_words(tile + tile_piece(row, piece));
    if (row < tokens && 8 * piece < columns) *reinterpret_cast<uint4*>(to + row * token_bytes + piece * 16) = words;
  }
}

/// This warp's 16 rows of a tile to an image of it.
__device__ __forceinline__ void write_image(uint4* to, uint32_t tile, int block, int lane) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = 128 * block + 32 * i + lane;
    to[at] = ptx::load_words(tile + 16 * at);
  }
}

/// Copies this warp's 16 rows of a chunk to a tile, zeros past the end of the sequence and of its columns.
template <int kPanels>
__device__ __forceinline__ void copy_rows(uint32_t tile, const Operand& from, int64_t b, int64_t h, int column,
                                          int columns, int64_t first, int64_t length, int block, int lane) {
  const char* start = static_cast<const char*>(from.data) + (b * from.batch_stride + h * from.head_stride + column) * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = 16 * block + 4 * i + lane / 8;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int piece = 8 * panel + lane % 8;
      const bool valid = first + row < length && column + 8 * piece < columns;
      ptx::copy_chunk(tile + tile_piece(row, piece),
                      valid ? start + (first + row) * from.token_stride * 2 + piece * 16 : start, valid);
    }
  }
}

/// Whether token `column` of the chunk is in what token `row` sees: up to it, from the last cut on.
__device__ __forceinline__ bool sees(int row, int column, int first_seen) {
  return static_cast<unsigned>(column - first_seen) <= static_cast<unsigned>(row - first_seen);
}

/// This warp's rows of products with keys, times D: keys up to the row less `before`, zeros after it. Masks are where the rows' own keys or a cut
/// are.
__device__ __forceinline__ void weigh_pairs(Sums& sums, const ChunkGates& gates, bool gated, int before, int block,
                                            int lane) {
  const int i0 = 16 * block + lane / 4, t = lane % 4;
  const int first_seen[2] = {gated ? gates.first_seen[i0] : 0, gated ? gates.first_seen[i0 + 8] : 0};
  const bool cuts = gated && gates.first_seen[kChunk - 1] > 0;
  const float sum[2] = {gates.sum[i0], gates.sum[i0 + 8]};
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    if (c / 2 > block) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[c][e] = 0.0f;
      continue;
    }
    const int j = 8 * c + 2 * t;
    if (gated) {
      const float2 sum_j = *reinterpret_cast<const float2*>(&gates.sum[j]);
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[c][e] *= exp2_approximate(sum[e / 2] - (e % 2 ? sum_j.y : sum_j.x));
    }
    if (c / 2 == block || cuts) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, row = i0 + 8 * half, at = j + e % 2;
        if (!sees(row, at, first_seen[half]) || at > row - before) sums[c][e] = 0.0f;
      }
    }
  }
}

/// The sums' columns times `factors`.
__device__ __forceinline__ void scale_columns(Sums& sums, const float* factors, int lane) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 factor = *reinterpret_cast<const float2*>(&factors[8 * c + lane % 4 * 2]);
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[c][e] *= e % 2 ? factor.y : factor.x;
  }
}

/// A warp: the largest of 64 products |a_j b_j|.
__device__ __forceinline__ float largest_product(const float* a, const float* b, int lane) {
  const float2 x = *reinterpret_cast<const float2*>(a + 2 * lane), y = *reinterpret_cast<const float2*>(b + 2 * lane);
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(fmaxf(fabsf(x.x * y.x), fabsf(x.y * y.y)))));
}

/// A transposed left operand, its columns times factors: of tokens 16k …, from rows of a tile.
__device__ __forceinline__ void load_weighted_transposed(uint32_t (&left)[4], uint32_t tile, int k, int block,
                                                         const float2& near, const float2& far, int lane) {
  load_transposed_left(left, tile, k, block, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack<__half>(left[i]), w = i < 2 ? near : far;
    left[i] = pack<__half>(x.x * w.x, x.y * w.y);
  }
}

/// The gates and strengths of one chunk, a lane's two tokens.
struct RawChunk {
  RawGates gates;
  float2 beta;

  __device__ __forceinline__ void load(const Gates& gate, const Gates& strength, int64_t length, int64_t b, int64_t h,
                                       int64_t first, int lane) {
    gates = {0.0f, 0.0f, 0.0f};
    if (gate.log_forget)
      gates = load_gates(gate.log_forget + b * gate.batch_stride + h * gate.head_stride, gate.token_stride, first,
                         length, false, lane);
    const float* from = strength.log_forget + b * strength.batch_stride + h * strength.head_stride;
    const int64_t token = first + 2 * lane;
    beta.x = token < length ? load_global(from + token * strength.token_stride) : 0.0f;
    beta.y = token + 1 < length ? load_global(from + (token + 1) * strength.token_stride) : 0.0f;
  }
};

}  // namespace lethe::matrix_state
