#pragma once
// Products of tiles of 64 × 64, of which a warp has 16 rows.

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/tiles.cuh"
#include "optimized/cuda/matrix_state/units.cuh"
#include "optimized/cuda/ptx/mma.cuh"

namespace lethe::matrix_state {

/// A warp's place among the rows of 64 and its lane's among a fragment's.
struct Place {
  int block, lane;
};

/// Rows of a tile as left operands: of 16 columns.
__device__ inline void load_left(uint32_t (&a)[4], uint32_t tile, int k, Place at) {
  ptx::load_matrices(a, tile + tile_piece(16 * at.block + at.lane % 16, 2 * k + at.lane / 16));
}

/// Columns of a tile as the left operands' rows: of 16 of its rows.
__device__ inline void load_left_transposed(uint32_t (&a)[4], uint32_t tile, int k, Place at) {
  ptx::load_matrices_transposed(
      a, tile + tile_piece(16 * k + at.lane % 8 + at.lane / 16 * 8, 2 * at.block + at.lane / 8 % 2));
}
/// Where a lane reads its first step, 2048 bytes before the next one's.
__device__ inline uint32_t transposed_piece(Place at) {
  return tile_piece(at.lane % 8 + at.lane / 16 * 8, 2 * at.block + at.lane / 8 % 2);
}

/// The 16 rows 16k… of a tile as right operands.
__device__ inline void load_rows(uint32_t (&r)[4][4], uint32_t tile, int k, int lane) {
#pragma unroll
  for (int c = 0; c < 4; ++c)
    ptx::load_matrices_transposed(r[c], tile + tile_piece(16 * k + lane % 16, 2 * c + lane / 16));
}

/// sum += left · the rows that load_rows returned.
template <typename Element>
__device__ inline void multiply_rows(float (&sum)[8][4], const uint32_t (&left)[4], const uint32_t (&r)[4][4]) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    ptx::multiply_add<Element>(sum[2 * c], left, r[c][0], r[c][1]);
    ptx::multiply_add<Element>(sum[2 * c + 1], left, r[c][2], r[c][3]);
  }
}

template <typename Element>
__device__ inline void add_rows_product(float (&sum)[8][4], const uint32_t (&left)[4], uint32_t tile, int k, Place at) {
  uint32_t r[4][4];
  load_rows(r, tile, k, at.lane);
  multiply_rows<Element>(sum, left, r);
}

/// sum += left · right, of tiles.
template <typename Element>
__device__ inline void add_product(float (&sum)[8][4], uint32_t left, uint32_t right, Place at) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4];
    load_left(a, left, k, at);
    add_rows_product<Element>(sum, a, right, k, at);
  }
}

/// sum += left · rightᵀ, of tiles.
template <typename Element>
__device__ inline void add_product_transposed(float (&sum)[8][4], uint32_t left, uint32_t right, Place at) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4], r[4][4];
    load_left(a, left, k, at);
#pragma unroll
    for (int c = 0; c < 4; ++c)
      ptx::load_matrices(r[c], right + tile_piece(16 * c + at.lane % 8 + at.lane / 16 * 8, 2 * k + at.lane / 8 % 2));
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      ptx::multiply_add<Element>(sum[2 * c], a, r[c][0], r[c][1]);
      ptx::multiply_add<Element>(sum[2 * c + 1], a, r[c][2], r[c][3]);
    }
  }
}

/// 16 columns of sums as a left operand, divided by a power of two.
template <typename Element>
__device__ inline void pack_left(uint32_t (&a)[4], const float (&sum)[8][4], int k, float inverse) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    a[i] = pack<Element>(sum[2 * k + i / 2][i % 2 * 2] * inverse, sum[2 * k + i / 2][i % 2 * 2 + 1] * inverse);
}

/// Of 16 tokens, as load_left_transposed has them: each times its weight.
template <typename Element, bool kWeighted>
__device__ inline void weigh_keys(uint32_t (&keys)[4], const float* write, float scale, int k, int lane) {
  const int j = 16 * k + lane % 4 * 2;
  float2 near{scale, scale}, far = near;
  if constexpr (kWeighted) {
    near = *reinterpret_cast<const float2*>(&write[j]);
    far = *reinterpret_cast<const float2*>(&write[j + 8]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack<Element>(keys[i]), w = i < 2 ? near : far;
    keys[i] = pack<Element>(x.x * w.x, x.y * w.y);
  }
}

/// state += (b ∘ write)ᵀ c, of tiles.
template <typename Element, bool kGated>
__device__ inline void add_outer_products(float (&state)[8][4], uint32_t b, uint32_t c, const ChunkGates& gates,
                                          float scale, Place at) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t keys[4];
    load_left_transposed(keys, b, k, at);
    weigh_keys<Element, kGated>(keys, gates.write, scale, k, at.lane);
    add_rows_product<Element>(state, keys, c, k, at);
  }
}

/// The dot products of a lane's two rows of sums with the rows of a tile: of all four lanes that share a row.
template <typename Element>
__device__ inline void row_dots(float (&dot)[2], const float (&sum)[8][4], uint32_t tile, Place at) {
  dot[0] = dot[1] = 0.0f;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t a[4];
    load_left(a, tile, c, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(a[i]);
      dot[i % 2] += sum[2 * c + i / 2][i % 2 * 2] * x.x + sum[2 * c + i / 2][i % 2 * 2 + 1] * x.y;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) dot[half] = quad_sum(dot[half]);
}

/// A warp's 16 rows of sums, rounded, to a tensor [B, T, H, columns]: the first at `first`, which is that of its row 0.
template <typename Element>
__device__ inline void store_rows(const float (&sum)[8][4], void* tensor, int64_t first, int64_t length, int64_t b,
                                  int64_t h, int heads, int columns, int lane) {
  const int g = lane / 4, t = lane % 4;
  const bool odd = t % 2 != 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t token = first + g + 8 * half;
    char* const row = static_cast<char*>(tensor) + ((b * length + token) * heads + h) * columns * 2;
#pragma unroll
    for (int c = 0; c < 8; c += 2) {  // two lanes exchange, so that each has eight bytes and four of them 32
      const uint32_t near = pack<Element>(sum[c][2 * half], sum[c][2 * half + 1]),
                     far = pack<Element>(sum[c + 1][2 * half], sum[c + 1][2 * half + 1]),
                     other = __shfl_xor_sync(kAllLanes, odd ? near : far, 1);
      const int column = 8 * c + (odd ? 8 + 2 * (t - 1) : 2 * t);
      if (token < length && column < columns)
        *reinterpret_cast<uint2*>(row + column * 2) = odd ? uint2{other, far} : uint2{near, other};
    }
  }
}

}  // namespace lethe::matrix_state
