#pragma once
// Float sums of the rows of a tile that the tensor core's accumulators hold transposed: a row's elements are in eight lanes of each warp.

#include <cuda_runtime.h>

namespace lethe::tile {

/// Sums of rows over the eight lanes that hold parts of them. `sums[2j + e]` of lane l is its part of row 8j + 2 (l mod 4) + e, j < 8, the order of
/// mma's accumulators of 64 columns; lane l returns rows 2l and 2l + 1. By all lanes of a warp; overwrites `sums`. Each of three steps halves a
/// lane's parts: it keeps one half and sends the other. 14 exchanges instead of the 48 of a sum for each row; in one fixed order.
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

/// The same of 32 columns: `sums[2j + e]`, j < 4; a lane returns the sum of row_of_thirty_two(lane).
__device__ inline float sum_of_thirty_two_rows(float (&sums)[8], int lane) { return sums_of_rows<16, 4>(sums, lane).x; }
__device__ inline int row_of_thirty_two(int lane) { return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2; }

/// The same of 16 columns: a lane returns the sum of row_of_sixteen(lane), as the lane four from it does.
__device__ inline float sum_of_sixteen_rows(float (&sums)[4], int lane) {
  const bool upper = lane & 16, odd = lane & 8;
#pragma unroll
  for (int e = 0; e < 2; ++e)
    sums[e] = (upper ? sums[2 + e] : sums[e]) + __shfl_xor_sync(~0u, upper ? sums[e] : sums[2 + e], 16);
  const float sum = (odd ? sums[1] : sums[0]) + __shfl_xor_sync(~0u, odd ? sums[0] : sums[1], 8);
  return sum + __shfl_xor_sync(~0u, sum, 4);
}
__device__ inline int row_of_sixteen(int lane) { return lane / 16 * 8 + lane % 4 * 2 + lane / 8 % 2; }

/// One of two groups' sums, from the parts in a lane and in the lane 16 from it: the first group's below lane 16.
__device__ inline float part_of_group(float first, float second, int lane) {
  const bool upper = lane & 16;
  return (upper ? second : first) + __shfl_xor_sync(~0u, upper ? first : second, 16);
}

/// The sum of x over the four lanes that hold a column of such a tile.
__device__ inline float sum_of_column(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace lethe::tile
