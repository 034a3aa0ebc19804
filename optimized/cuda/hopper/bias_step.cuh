#pragma once
// A product that starts from one number a column, by one more k-step of the product itself:
//
//   D [64, N] += 1 · b,  b_n = b_n1 + b_n2 + b_n3
//
// B's column n holds b_n as three bfloat16, which together have a float's 24 bits; A's rows are three ones. The products are exact, so b_n is added,
// rounded by the tensor core as every other k-step's sum is. Registers are not touched: loading b into the accumulators takes a load and a move for
// every pair of them, the product can't start before both have arrived, and loads from shared memory are slow while products run.
//
// Operands are stored without a swizzle, in one of two forms:
//   BiasColumn   K-major, 16 bytes a column, of which six are used: a NaN or ∞ stays in its own column. A in shared memory.
//   BiasOfEight  MN-major, six bytes a column. A in registers. The 80 bytes behind eight columns' parts are read as five more parts and meet
//                zeros in A: they hold the next columns' parts, or anything else without NaN or ∞.
// The other eight of the step's sixteen k are read from the same place and meet zeros, too. memcheck takes an operand's rows to be 32 bytes long,
// whatever its strides: as much shared memory should follow its beginning.

#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe {

/// The three parts of a number.
struct BiasParts {
  __nv_bfloat16 part[3];
};

/// b_n as stored in B: its three parts, then zeros.
struct alignas(16) BiasColumn {
  __nv_bfloat16 part[8];
};

/// b of eight columns as stored in B: the first parts of all, then the second, then the third.
struct alignas(16) BiasOfEight {
  __nv_bfloat16 part[3][8];
};

/// Shared memory for B of kStages steps, and zeros. Cleared before the first step: a product may read the stage after its own, still unfilled.
template <int kN, int kStages>
struct DenseBias {
  BiasOfEight eights[kStages][kN / 8];
  BiasOfEight none;
  uint4 behind[5];
};

/// A of the step: 8 rows of 16 bytes, of which all 64 of the product are copies, and as many zeros for the other half of k.
struct alignas(128) BiasOnes {
  uint4 row[16];
};

/// The range of the parts: an infinite x, or one outside bfloat16's range, becomes ±3e38. An infinite part would meet the zeros of A.
__device__ inline float within_bias_parts(float x) { return fabsf(x) > 3e38f ? copysignf(3e38f, x) : x; }

/// The next part of two numbers, which is subtracted from them.
__device__ inline __nv_bfloat162 next_part(float& x, float& y) {
  const __nv_bfloat162 part = __floats2bfloat162_rn(x, y);
  x -= __low2float(part);
  y -= __high2float(part);
  return part;
}

/// x = part 0 + part 1 + part 2
/// domain   that of within_bias_parts()
/// numerics  exact above 2^−110; NaN stays NaN
__device__ inline BiasParts bias_parts(float x) {
  x = within_bias_parts(x);
  BiasParts parts;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    parts.part[i] = __float2bfloat16(x);
    x -= __bfloat162float(parts.part[i]);
  }
  return parts;
}

/// The parts in B's layout.
__device__ inline BiasColumn bias_column(float x) {
  const BiasParts parts = bias_parts(x);
  return {{parts.part[0], parts.part[1], parts.part[2]}};
}

/// By threads 0 to 15; a ptx::fence_async_shared() and a barrier must follow it before the products.
__device__ inline void fill_ones(BiasOnes& ones, int thread) {
  constexpr uint32_t kOne = 0x3f80, kTwoOnes = kOne << 16 | kOne;
  if (thread < 16) ones.row[thread] = thread < 8 ? uint4{kTwoOnes, kOne, 0, 0} : uint4{0, 0, 0, 0};
}

/// By `threads` threads, before the same.
template <int kN, int kStages>
__device__ inline void clear(DenseBias<kN, kStages>& bias, int thread, int threads) {
  auto* words = reinterpret_cast<uint4*>(&bias);
  for (int i = thread; i < static_cast<int>(sizeof bias / sizeof *words); i += threads) words[i] = uint4{0, 0, 0, 0};
}

__device__ inline uint64_t ones_operand(const BiasOnes& ones) { return ptx::unswizzled_descriptor(ones.row, 128, 0); }
__device__ inline uint64_t bias_operand(const BiasColumn* columns) {
  return ptx::unswizzled_descriptor(columns, 0, 128);
}
__device__ inline uint64_t bias_operand(const BiasOfEight* columns) {
  return ptx::unswizzled_descriptor(columns, 0, sizeof *columns);
}

/// B of a step that adds nothing: all columns are the same eight.
template <int kN, int kStages>
__device__ inline uint64_t no_bias_operand(const DenseBias<kN, kStages>& bias) {
  return ptx::unswizzled_descriptor(&bias.none, 0, 0);
}

/// A with three ones a row, the first two of a lane's registers; the other two are zeros.
__device__ inline uint32_t ones_in_registers(int lane) {
  return lane % 4 == 0 ? 0x3f803f80 : lane % 4 == 1 ? 0x3f80 : 0;
}

/// Adds the bias to accumulators of the batch of products that is being issued, whatever their element type: that of BiasColumn,
template <int kCount>
__device__ inline void issue_bias(float (&d)[kCount], uint64_t ones, uint64_t bias) {
  ptx::wgmma<ptx::Major::kK, ptx::Major::kK>(__nv_bfloat16{}, d, ones, bias, true);
}
/// and that of BiasOfEight, from which they may also start.
template <int kCount>
__device__ inline void issue_dense_bias(float (&d)[kCount], uint32_t ones, uint64_t bias, bool accumulate) {
  ptx::wgmma<ptx::Major::kMN>(__nv_bfloat16{}, d, ones, ones, 0, 0, bias, accumulate);
}

}  // namespace lethe
