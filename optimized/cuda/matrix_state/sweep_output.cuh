#pragma once
// The output of a sweep to global memory.

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/sweep.hpp"
#include "optimized/cuda/matrix_state/tiles.cuh"

namespace lethe::matrix_state {

/// A head's tile of columns of the output, of which a warp writes 16 rows of every chunk.
template <typename Element, int kColumns>
struct SweepOutput {
  static constexpr int kColumnTiles = kColumns / 8;
  const SweepArguments& p;
  const int64_t b, h;
  const int column, columns, block, lane;
  const int64_t token_bytes;
  char* const own;  ///< where this lane's pieces of a chunk begin: those of 16-bit elements

  __device__ __forceinline__ SweepOutput(const SweepArguments& p, int64_t b, int64_t h, int column, int columns,
                                         int warp, int lane)
      : p(p), b(b), h(h), column(column), columns(columns), block(warp), lane(lane),
        token_bytes(static_cast<int64_t>(p.heads) * p.columns * 2),
        own(static_cast<char*>(p.out) + (b * p.length + 16 * warp + lane / kColumnTiles) * token_bytes +
            (h * p.columns + column + lane % kColumnTiles * 8) * 2) {}

  /// Rows of `out`, sums; 16-bit elements through the warp's rows of the tile at `stage`.
  __device__ __forceinline__ void write(const float (&out)[kColumnTiles][4], uint32_t stage, int64_t first) const {
    const int i0 = 16 * block + lane / 4, t = lane % 4;
    if (p.float_out) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t token = first + i0 + 8 * half;
          if (token < p.length && 8 * c < columns)
            *reinterpret_cast<float2*>(static_cast<float*>(p.out) + ((b * p.length + token) * p.heads + h) * p.columns +
                                       column + 8 * c + 2 * t) = {out[c][2 * half], out[c][2 * half + 1]};
        }
    } else {
      __syncwarp();
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t to = stage + tile_piece(i0 + 8 * half, c) + t * 4,
                         packed = pack<Element>(out[c][2 * half], out[c][2 * half + 1]);
          asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(packed) : "memory");
        }
      __syncwarp();
      constexpr int kRowsAtOnce = 32 / kColumnTiles;
      const int row = 16 * block + lane / kColumnTiles, piece = lane % kColumnTiles;
      char* to = own + first * token_bytes;
#pragma unroll
      for (int i = 0; i < 16; i += kRowsAtOnce) {
        uint4 eight;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                     : "r"(stage + tile_piece(row + i, piece))
                     : "memory");
        if (first + row + i < p.length && 8 * piece < columns) *reinterpret_cast<uint4*>(to + i * token_bytes) = eight;
      }
    }
  }
};

}  // namespace lethe::matrix_state
