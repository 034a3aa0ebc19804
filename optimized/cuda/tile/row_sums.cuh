#pragma once
// Sums of a tile's rows in float where the tensor core's accumulators hold it transposed: a row's elements lie in eight lanes of each warp.
// Internal to optimized/cuda.

#include <cuda_runtime.h>

namespace lethe {

/// Adds up what eight lanes have of a row. `sums[2j + e]` of lane l is that of row 8j + 2 (l mod 4) + e, j < 8, as a warp's accumulators of
/// 64 columns lie (ptx/wgmma.cuh); lane l is left with rows 2l and 2l + 1. All lanes of a warp; `sums` is spent. Each of three steps halves
/// what a lane holds: it keeps one half and gives the other away. 14 exchanges instead of the 48 of a sum for each row; always in one order.
template <int kLanes = 16, int kHalf = 8>
__device__ inline float2 sums_of_rows(float* sums, int lane) {
  const bool upper = lane & kLanes;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float first = sums[i], second = sums[i + kHalf];
    sums[i] = (upper ? second : first) + __shfl_xor_sync(~0u, upper ? first : second, kLanes);
  }
  if constexpr (kLanes > 4) return sums_of_rows<kLanes / 2, kHalf / 2>(sums, lane);
  else return {sums[0], sums[1]};
}

/// Of a lane's part of the sums of two groups of rows: what it and the lane 16 from it have of one, the first below lane 16.
__device__ inline float part_of_group(float first, float second, int lane) {
  const bool upper = lane & 16;
  return (upper ? second : first) + __shfl_xor_sync(~0u, upper ? first : second, 16);
}

/// x added up over the four lanes that have a column of such a tile.
__device__ inline float sum_of_column(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace lethe
