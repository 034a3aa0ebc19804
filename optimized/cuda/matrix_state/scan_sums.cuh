#pragma once
// Sums of a head's state over rows, in a warp, and over a warp's columns. `s` is a thread's part of the state, 8 rows × 4 columns (scan.cuh).

#include "optimized/cuda/matrix_state/scan_parts.cuh"

namespace lethe::matrix_state {

/// Σ over all rows of x_row s, of column 2·(lane & 1) + lane / 2 % 2 of the thread's four.
template <typename Shape>
__device__ __forceinline__ float sum_over_rows(const float (&x)[8], const float (&s)[8][4], int lane) {
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[j] = fmaf(x[i], s[i][j], sum[j]);
  const bool high = lane & 1, higher = lane & 2;
  const float a0 = (high ? sum[2] : sum[0]) + __shfl_xor_sync(~0u, high ? sum[0] : sum[2], 1);
  const float a1 = (high ? sum[3] : sum[1]) + __shfl_xor_sync(~0u, high ? sum[1] : sum[3], 1);
  float a = (higher ? a1 : a0) + __shfl_xor_sync(~0u, higher ? a0 : a1, 2);
#pragma unroll
  for (int step = 4; step < Shape::kRowLanes; step *= 2) a += __shfl_xor_sync(~0u, a, step);
  return a;
}

/// All four columns' sums in each lane, from the one of sum_over_rows.
__device__ __forceinline__ void gather_sums(float a, float (&x)[4], int lane) {
  const float other = __shfl_xor_sync(~0u, a, 2);
  const bool high = lane & 1, higher = lane & 2;
  const float even = higher ? other : a, odd = higher ? a : other, far_even = __shfl_xor_sync(~0u, even, 1),
              far_odd = __shfl_xor_sync(~0u, odd, 1);
  x[0] = high ? far_even : even, x[1] = high ? far_odd : odd, x[2] = high ? even : far_even,
  x[3] = high ? odd : far_odd;
}

/// Σ over this warp's columns of s x_column, into shared memory. r, c: the place of the lane's rows and columns (scan.cuh).
template <typename Shape>
__device__ __forceinline__ void sum_over_columns(const float (&x)[4], const float (&s)[8][4], float* to, int r, int c) {
  constexpr int kRows = 8 * Shape::kRowLanes;
  float sum[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = fmaf(s[i][3], x[3], fmaf(s[i][2], x[2], fmaf(s[i][1], x[1], s[i][0] * x[0])));
  if constexpr (Shape::kColumnLanes == 1) {
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      *reinterpret_cast<float4*>(to + i / 4 * (kRows / 2) + 4 * r) = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
    return;
  }
  const bool high = c & 1;
  float four_rows[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    four_rows[i] = (high ? sum[4 + i] : sum[i]) + __shfl_xor_sync(~0u, high ? sum[i] : sum[4 + i], Shape::kRowLanes);
  const int row = (high ? kRows / 2 : 0) + 4 * r;
  if constexpr (Shape::kColumnLanes == 2) {
    *reinterpret_cast<float4*>(to + row) = {four_rows[0], four_rows[1], four_rows[2], four_rows[3]};
  } else {
    const bool higher = c & 2;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      two[i] = (higher ? four_rows[2 + i] : four_rows[i]) +
               __shfl_xor_sync(~0u, higher ? four_rows[i] : four_rows[2 + i], 2 * Shape::kRowLanes);
    *reinterpret_cast<float2*>(to + row + (higher ? 2 : 0)) = {two[0], two[1]};
  }
}

}  // namespace lethe::matrix_state
