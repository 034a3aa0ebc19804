#pragma once
// What the kernels for gates of rows and columns share: where a CTA is, and their powers of two.

#include <numbers>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/vector_gates.hpp"
#include "optimized/cuda/ptx/address.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"
#include "optimized/cuda/ptx/mma.cuh"
#include "optimized/cuda/ptx/shared.cuh"
#include "optimized/cuda/ptx/threads.cuh"

namespace lethe::matrix_state {

constexpr int kTokens = 64;        ///< of a chunk
constexpr int kSweepColumns = 64;  ///< of a state that one CTA sweeps
constexpr int kVectorThreads = 256;
constexpr unsigned kEveryLane = 0xffffffffu;
constexpr float kLog2e = std::numbers::log2e_v<float>;

/// Rows of a state that a CTA owns of its gradients, and that a left operand's array has together: a warp has 16.
__host__ __device__ constexpr int row_tile_of(int64_t rows) { return rows <= 32 ? 32 : 64; }

/// The head and columns of a CTA. In reverse, row r of the pass is token `last` − r, else r.
struct VectorPlace {
  int64_t head, b, h;
  int column;
  int64_t last;  ///< −1: in order
  __device__ __forceinline__ int64_t token(int64_t row) const { return last < 0 ? row : last - row; }
};

/// After a barrier of the CTA: one of its threads lets other CTAs read what the CTA has written for the first `chunks` of its `all` chunks.
__device__ __forceinline__ void mark(int32_t* marks, int chunks, int all) {
  if (chunks % kMarkSteps == 0 || chunks == all)
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(marks), "r"(chunks) : "memory");
}

/// A warp waits until as many chunks are there at each lane's mark as the lane needs. All CTAs that write them run already, or have ended.
__device__ __forceinline__ void wait_for_marks(const int32_t* mark, int needed) {
  for (;;) {
    int32_t there;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(mark) : "memory");
    if (__all_sync(kEveryLane, there >= needed)) break;
    __nanosleep(500);
  }
  __syncwarp();
}

__device__ inline float2 product(float2 x, float2 y) { return {x.x * y.x, x.y * y.y}; }

/// The power of two at or below x ≥ 0, not a subnormal one; and 1 over it.
__device__ inline float power_below(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7f800000u;
  return __uint_as_float(min(max(bits, 0x01000000u), 0x7e000000u));
}
__device__ inline float inverse_of_power(float power) { return __uint_as_float(0x7f000000u - __float_as_uint(power)); }

/// Of a product of two operands of one halving: which pairs (row g or g + 8, column 2t + e of the same eight) it is right for. 8 is the pairs of the
/// two eights of a block, 0 the tokens with themselves, −1 no pair.
__device__ inline int halving_of(int row, int column) {
  return column > row ? -1 : column == row ? 0 : 1 << (31 - __clz(row ^ column));
}

/// From the address of a piece of a swizzled tile (ptx/address.cuh) that of the same piece `rows` rows below, where the sum of the rows' last three
/// bits carries nothing; and of the pieces 16·k columns to the right.
template <int kColumns>
__device__ __forceinline__ uint32_t rows_below(uint32_t address, int rows) {
  if constexpr (kColumns % 64 == 0) return (address ^ (rows & 7) << 4) + rows * (kColumns * 2);
  else return (address ^ (rows >> 1 & 3) << 4) + rows * (kColumns * 2);
}
template <int kColumns>
__device__ __forceinline__ uint32_t steps_right(uint32_t address, int k) {
  if constexpr (kColumns % 64 == 0) return (address ^ (k % 4 << 5)) + k / 4 * 128;
  else return address ^ (k << 5);
}

/// Byte offset of eight pairs of a row among 16 rows of 16: rows in groups of four have their halves exchanged, so that eight are in different banks.
__device__ inline uint32_t pair_piece(uint32_t row, uint32_t piece) {
  return row * 32 + ((piece ^ (row >> 2 & 1)) << 4);
}

}  // namespace lethe::matrix_state
