#pragma once
// A product that starts from a number a column, by one more k-step of the product itself:
//
//   D [64, N] += 1 · b,  b_n = b_n1 + b_n2 + b_n3
//
// B's column n holds b_n as three bfloat16, which have the 24 bits of a float between them; A's rows are three ones. The products are
// exact, so what is added is b_n, rounded by the tensor core as every other k-step's sum is. Registers are not touched: to load b into
// the accumulators takes a load and a move for every pair of them, and they can't start before both have arrived.
//
// Operands lie without a swizzle: 16 bytes a column, the first three of eight numbers, columns behind one another. The other eight of
// the step's sixteen k are read from the same place and meet zeros in A. memcheck takes an operand to be 32 bytes a row long, whatever
// its strides: so much of shared memory should lie behind its beginning.

#include "optimized/cuda/ptx/wgmma.cuh"

namespace lethe {

/// b_n as it lies in B: its three parts, then zeros.
struct alignas(16) BiasColumn {
  __nv_bfloat16 part[8];
};

/// A of the step: 8 rows of 16 bytes, of which all 64 of the product are copies, and as many zeros for the other half of k.
struct alignas(128) BiasOnes {
  uint4 row[16];
};

/// domain   infinite and what leaves bfloat16's range becomes ±3e38: infinite, it would meet the zeros of A
/// numerics  exact above 2^−110; NaN stays NaN, in its own column
__device__ inline BiasColumn bias_column(float x) {
  if (fabsf(x) > 3e38f) x = copysignf(3e38f, x);
  BiasColumn column{};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    column.part[i] = __float2bfloat16(x);
    x -= __bfloat162float(column.part[i]);
  }
  return column;
}

/// By threads 0 to 15; a ptx::fence_async_shared() and a barrier must lie between it and the products.
__device__ inline void fill_ones(BiasOnes& ones, int thread) {
  constexpr uint32_t kOne = 0x3f80, kTwoOnes = kOne << 16 | kOne;
  if (thread < 16) ones.row[thread] = thread < 8 ? uint4{kTwoOnes, kOne, 0, 0} : uint4{0, 0, 0, 0};
}

__device__ inline uint64_t ones_operand(const BiasOnes& ones) { return ptx::unswizzled_descriptor(ones.row, 128, 0); }
__device__ inline uint64_t bias_operand(const BiasColumn* columns) {
  return ptx::unswizzled_descriptor(columns, 0, 128);
}

/// Adds the bias to accumulators of the batch of products that is being issued, whatever their element type.
template <int kCount>
__device__ inline void issue_bias(float (&d)[kCount], uint64_t ones, uint64_t bias) {
  ptx::wgmma<ptx::Major::kK, ptx::Major::kK>(__nv_bfloat16{}, d, ones, bias, true);
}

}  // namespace lethe
