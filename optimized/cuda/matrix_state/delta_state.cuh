#pragma once
// The state of the delta rule, or its gradient, in the registers of four warps.

#include "optimized/cuda/matrix_state/delta_parts.cuh"

namespace lethe::matrix_state {

/// A state whose true numbers are `unit` times those held, in sums of 16 rows a warp and 64 rows: row 64m + 16·warp + g + 8·(e / 2).
template <int kRows>
struct DeltaState {
  float x[kRows / 64][8][4];
  float unit;

  template <typename At>
  __device__ __forceinline__ void load(const float* from, int rows, int columns, const At& at, int block, int lane) {
    unit = 1.0f;
    each(block, lane, [&](int row, int column, float& number) {
      number = from && row < rows && column < columns ? from[at(row, column)] : 0.0f;
    });
  }

  template <typename At>
  __device__ __forceinline__ void store(float* to, int rows, int columns, const At& at, int block, int lane) {
    each(block, lane, [&](int row, int column, float& number) {
      if (row < rows && column < columns) to[at(row, column)] = number * unit;
    });
  }

  template <typename Use>
  __device__ __forceinline__ void each(int block, int lane, const Use& use) {
#pragma unroll
    for (int m = 0; m < kRows / 64; ++m)
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          use(64 * m + 16 * block + lane / 4 + 8 * (e / 2), 8 * c + 2 * (lane % 4) + e % 2, x[m][c][e]);
  }

  __device__ __forceinline__ float largest() const {
    float most = 0.0f;
#pragma unroll
    for (int m = 0; m < kRows / 64; ++m)
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) most = fmaxf(most, fabsf(x[m][c][e]));
    return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(most)));
  }

  /// The numbers held times `factor`, as a tile of float16.
  __device__ __forceinline__ void round_to(uint32_t tile, float factor, int block, int lane) const {
    const float factors[2] = {factor, factor};
#pragma unroll
    for (int m = 0; m < kRows / 64; ++m) store_rows<__half>(x[m], factors, tile + m * kPanel, block, lane);
  }

  /// The unit for sums whose terms are at most `most`: not far below the state's own.
  __device__ __forceinline__ void change_unit(float most, float own, float decay) {
    const float next = power_of_two_below(fmaxf(most, own * decay * 0x1p-40f));
    const float factor = fminf(decay * unit * reciprocal_of_power(next), 0x1p120f);
    unit = next;
#pragma unroll
    for (int m = 0; m < kRows / 64; ++m)
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) x[m][c][e] *= factor;
  }
};

}  // namespace lethe::matrix_state
