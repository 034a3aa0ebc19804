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
#if __CUDA_ARCH__ >= 900
  static constexpr bool kByCopyEngine = kColumns == 64;  // the box of a tensor map
#else
  static constexpr bool kByCopyEngine = false;
#endif
  const SweepArguments& p;
  const int64_t b, h;
  const int column, columns, block, lane;
  char* const buffer;  ///< in shared memory: a tile of 64 tokens

  /// Rows of `out`, sums.
  __device__ __forceinline__ void write(const float (&out)[kColumnTiles][4], int64_t first) const {
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
      return;
    }
    if (kByCopyEngine && lane == 0) ptx::bulk_wait_read<0>();  // the previous chunk's rows have left
    __syncwarp();
    const uint32_t tile = ptx::shared_address(buffer);
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t to = tile + tile_piece(i0 + 8 * half, c) + t * 4,
                       packed = pack<Element>(out[c][2 * half], out[c][2 * half + 1]);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(packed) : "memory");
      }
    if constexpr (kByCopyEngine) {
      ptx::fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        ptx::store_tile(&p.maps[4], buffer + 16 * block * 128, column, static_cast<int>(h),
                        static_cast<int>(first) + 16 * block, static_cast<int>(b));
        ptx::bulk_commit();
      }
    } else {
      __syncwarp();
      constexpr int kRowsAtOnce = 32 / kColumnTiles;
      const int row = 16 * block + lane / kColumnTiles, piece = lane % kColumnTiles;
      const int64_t token_bytes = static_cast<int64_t>(p.heads) * p.columns * 2;
      char* to = static_cast<char*>(p.out) + (b * p.length + first + row) * token_bytes +
                 (h * p.columns + column + piece * 8) * 2;
#pragma unroll
      for (int i = 0; i < 16; i += kRowsAtOnce) {
        uint4 eight;
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                     : "r"(tile + tile_piece(row + i, piece))
                     : "memory");
        if (first + row + i < p.length && 8 * piece < columns) *reinterpret_cast<uint4*>(to + i * token_bytes) = eight;
      }
    }
  }

  /// Before the CTA ends.
  __device__ void finish() const {
    if (kByCopyEngine && lane == 0) ptx::bulk_wait<0>();
  }
};

}  // namespace lethe::matrix_state
