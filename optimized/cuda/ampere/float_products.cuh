#pragma once
// A warp's products of floats, by multiplications and additions that round to nearest. Rows and columns are a lane's as in mma's sums (ptx/mma.cuh),
// so that masks, weights and sums are those of 16-bit operands.
//
// Tiles lie in shared memory as rows of 2·kDim 16-bit elements would. A lane reads 16 bytes at a time, lanes of other rows from other banks.

#include "optimized/cuda/ptx/address.cuh"

namespace lethe::ampere {

/// The four floats of 16-byte chunk `chunk` of row `row` of a tile.
template <int kDim>
__device__ __forceinline__ float4 four_of(const char* tile, int row, int chunk) {
  return *reinterpret_cast<const float4*>(tile + ptx::swizzled_chunk<2 * kDim>(row, chunk));
}

/// sums = left · rightᵀ of 16·kRowTiles rows and 8·kColumns columns, which are the rows of `right`.
template <int kDim, int kRowTiles, int kColumns>
__device__ __forceinline__ void multiply_float_rows(float (&sums)[kRowTiles][kColumns][4], const char* left,
                                                    const char* right) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[i][c][e] = 0;
#pragma unroll 4
  for (int chunk = 0; chunk < kDim / 4; ++chunk) {
    float4 of_left[kRowTiles][2];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) of_left[i][h] = four_of<kDim>(left, 16 * i + 8 * h + lane / 4, chunk);
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float4 of_right = four_of<kDim>(right, 8 * c + 2 * (lane % 4) + e, chunk);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float& sum = sums[i][c][2 * h + e];
            sum = fmaf(of_left[i][h].x, of_right.x, sum);
            sum = fmaf(of_left[i][h].y, of_right.y, sum);
            sum = fmaf(of_left[i][h].z, of_right.z, sum);
            sum = fmaf(of_left[i][h].w, of_right.w, sum);
          }
      }
  }
}

/// A left operand of sixteen columns that passes between the lanes of a warp.
template <int kRowTiles>
struct FloatWeights {
  alignas(128) char rows[16 * kRowTiles * 16 * sizeof(float)];

  /// Of column tiles first and first + 1.
  template <int kColumns>
  __device__ __forceinline__ void store(const float (&weights)[kRowTiles][kColumns][4], int first) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          *reinterpret_cast<float2*>(rows + ptx::swizzled_chunk<32>(16 * i + 8 * h + lane / 4, 2 * c + lane % 4 / 2) +
                                     lane % 2 * 8) = {weights[i][first + c][2 * h], weights[i][first + c][2 * h + 1]};
    __syncwarp();
  }
  __device__ __forceinline__ float4 four(int row, int chunk) const {
    return *reinterpret_cast<const float4*>(rows + ptx::swizzled_chunk<32>(row, chunk));
  }
};

/// sums += weights · the 16 rows of kDim columns at `right`. A lane's sums [i][2q + s][2h + e] are of columns 16q + 4 (lane mod 4) + 2s + e.
template <int kDim, int kRowTiles>
__device__ __forceinline__ void multiply_float_columns(float (&sums)[kRowTiles][kDim / 8][4],
                                                       const FloatWeights<kRowTiles>& weights, const char* right) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int chunk = 0; chunk < 4; ++chunk) {
    float of_left[kRowTiles][2][4];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float4 four = weights.four(16 * i + 8 * h + lane / 4, chunk);
        of_left[i][h][0] = four.x, of_left[i][h][1] = four.y, of_left[i][h][2] = four.z, of_left[i][h][3] = four.w;
      }
#pragma unroll
    for (int row = 0; row < 4; ++row)
#pragma unroll
      for (int q = 0; q < kDim / 16; ++q) {
        const float4 of_right = four_of<kDim>(right, 4 * chunk + row, 4 * q + lane % 4);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float weight = of_left[i][h][row];
            float(&low)[4] = sums[i][2 * q], (&high)[4] = sums[i][2 * q + 1];
            low[2 * h] = fmaf(weight, of_right.x, low[2 * h]);
            low[2 * h + 1] = fmaf(weight, of_right.y, low[2 * h + 1]);
            high[2 * h] = fmaf(weight, of_right.z, high[2 * h]);
            high[2 * h + 1] = fmaf(weight, of_right.w, high[2 * h + 1]);
          }
      }
  }
}

/// Such sums of a warp's rows, from first_row on, of which `rows` are left: [B, T, heads, dim] by rows of row_elements. dim is a multiple of 4.
template <int kDim, int kRowTiles>
__device__ __forceinline__ void store_float_rows(const float (&sums)[kRowTiles][kDim / 8][4], float scale, float* to,
                                                 int64_t first_row, int rows, int64_t row_elements, int dim) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int q = 0; q < kDim / 16; ++q) {
        const int row = 16 * i + 8 * h + lane / 4, column = 16 * q + 4 * (lane % 4);
        const float(&low)[4] = sums[i][2 * q], (&high)[4] = sums[i][2 * q + 1];
        if (row < rows && column < dim)
          *reinterpret_cast<float4*>(to + (first_row + row) * row_elements + column) =
              float4{low[2 * h] * scale, low[2 * h + 1] * scale, high[2 * h] * scale, high[2 * h + 1] * scale};
      }
}

}  // namespace lethe::ampere
