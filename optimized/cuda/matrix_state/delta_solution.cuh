#pragma once
// W = (I + G β)⁻¹ G of a chunk (delta_forward.cuh), solved by blocks of 16 rows, those on the diagonal in float.

#include "optimized/cuda/matrix_state/delta_parts.cuh"
#include "optimized/cuda/ptx/transpose.cuh"

namespace lethe::matrix_state {

/// Two floats as float16, and what that leaves.
struct Halves {
  uint32_t high, low;

  __device__ __forceinline__ Halves(float x, float y) {
    high = pack<__half>(x, y);
    const float2 rounded = unpack<__half>(high);
    low = pack<__half>(x - rounded.x, y - rounded.y);
  }
};

/// sums += A B by tile of eight columns, without what two low parts give.
__device__ __forceinline__ void add_halves(float (&sum)[4], const uint32_t (&high)[4], const uint32_t (&low)[4],
                                           const uint32_t (&right_high)[2], const uint32_t (&right_low)[2]) {
  ptx::multiply_add<__half>(sum, high, right_low[0], right_low[1]);
  ptx::multiply_add<__half>(sum, low, right_high[0], right_high[1]);
  ptx::multiply_add<__half>(sum, high, right_high[0], right_high[1]);
}

/// β of a column's token and its key's unit twice.
struct ColumnFactors {
  static constexpr bool kNegative = false;
  const float *strength, *key_unit;

  __device__ __forceinline__ float operator()(int column) const { return strength[column] * key_unit[column]; }
};
/// The negatives of these, of all columns.
struct NegativeFactors {
  static constexpr bool kNegative = true;
  const float* numbers;

  __device__ __forceinline__ float operator()(int column) const { return numbers[column]; }
};

/// `sums` has G's rows of this warp and returns W's. `solution` gets the blocks (i, j ≤ i) of W as float16, and above the diagonal what that leaves of
/// those that other rows need: of block (i, j) in block (j, i + 1). Keys that correlate make W of numbers that nearly cancel, which 16 bits would lose.
/// `scratch`: 16 rows of 20 floats, this warp's. `barriers`: by how much the numbers of its barriers are greater, where a CTA solves several chunks.
template <typename Factors>
__device__ __forceinline__ void solve_rows(Sums& sums, uint32_t solution, float* scratch, const Factors& factors,
                                           int block, int lane, int barriers = 0) {
  constexpr int kStride = 20;
  const int g = lane / 4, t = lane % 4;
  const auto less = [](float x, float weighted, float from) {
    return fmaf(Factors::kNegative ? x : -x, weighted, from);
  };
  const auto negative = [&](int column) { return Factors::kNegative ? factors(column) : -factors(column); };
  // scratch: the diagonal block's transpose.
#pragma unroll
  for (int c = 0; c < 8; ++c)
    if (c / 2 == block)
#pragma unroll
      for (int e = 0; e < 4; ++e) scratch[(8 * (c % 2) + 2 * t + e % 2) * kStride + g + 8 * (e / 2)] = sums[c][e];
  __syncwarp();
  // A lane its column of W_b = G_b − G_b β W_b, from the first row on: each row's number is done when those before it are taken away.
  float solved[16];
  const int own = lane % 16;
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const float4 x = *reinterpret_cast<const float4*>(scratch + own * kStride + i);
    solved[i] = x.x, solved[i + 1] = x.y, solved[i + 2] = x.z, solved[i + 3] = x.w;
  }
#pragma unroll
  for (int j = 0; j < 15; ++j) {
    const float weighted = solved[j] * factors(16 * block + j);
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < 16; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(scratch + j * kStride + i);
      if (i > j) solved[i] = less(x.x, weighted, solved[i]);
      if (i + 1 > j) solved[i + 1] = less(x.y, weighted, solved[i + 1]);
      if (i + 2 > j) solved[i + 2] = less(x.z, weighted, solved[i + 2]);
      if (i + 3 > j) solved[i + 3] = less(x.w, weighted, solved[i + 3]);
    }
  }
  __syncwarp();
  if (lane < 16)
#pragma unroll
    for (int i = 0; i < 16; i += 4)
      *reinterpret_cast<float4*>(scratch + own * kStride + i) = {solved[i], solved[i + 1], solved[i + 2],
                                                                 solved[i + 3]};
  __syncwarp();
  // Y = (I − W_b β) G_b, the other blocks.
  float diagonal[2][4];
  uint32_t high[4], low[4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int column = 8 * n + 2 * t;
    const float near = negative(16 * block + column), far = negative(16 * block + column + 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = g + 8 * half;
      const float x = scratch[column * kStride + row], y = scratch[(column + 1) * kStride + row];
      diagonal[n][2 * half] = x;
      diagonal[n][2 * half + 1] = y;
      const Halves parts(x * near, y * far);
      high[2 * n + half] = parts.high;
      low[2 * n + half] = parts.low;
    }
  }
#pragma unroll
  for (int c = 0; c < 6; ++c) {
    if (c / 2 >= block) continue;
    uint32_t right_high[2], right_low[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Halves parts(sums[c][2 * half], sums[c][2 * half + 1]);
      right_high[half] = ptx::transposed(parts.high);
      right_low[half] = ptx::transposed(parts.low);
    }
    add_halves(sums[c], high, low, right_high, right_low);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    if (c / 2 != block) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[c][e] = diagonal[c % 2][e];
  }
  const auto store_blocks = [&] {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      if (c / 2 > block) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Halves parts(sums[c][2 * half], sums[c][2 * half + 1]);
        ptx::store_word(at_piece(sums_address(solution, block, lane), c) + 1024 * half, parts.high);
        if (block + 1 < kWarps)
          ptx::store_word(at_piece(sums_address(solution, c / 2, lane), 2 * (block + 1) + c % 2) + 1024 * half,
                          parts.low);
      }
    }
  };
  if (block == 0) store_blocks();
  ptx::named_barrier_sync(kPrepareBarrier + barriers, kComputing);
  if (block == 0) return;
  if (block >= 2) ptx::named_barrier_sync(kFirstRowBarrier + barriers, 3 * 32);
  if (block == 3) ptx::named_barrier_sync(kSecondRowBarrier + barriers, 2 * 32);
    // W_j = Y_j − Σ_{j ≤ k < block} Y_k β W_kj.
#pragma unroll
  for (int k = 0; k < kWarps - 1; ++k) {
    if (k >= block) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = 16 * k + 8 * n + 2 * t;
      const float near = negative(column), far = negative(column + 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Halves parts(sums[2 * k + n][2 * half] * near, sums[2 * k + n][2 * half + 1] * far);
        high[2 * n + half] = parts.high;
        low[2 * n + half] = parts.low;
      }
    }
#pragma unroll
    for (int j = 0; j <= k; ++j) {
      uint32_t right_high[4], right_low[4];
      load_right_rows(right_high, solution, k, j, lane);
      load_right_rows(right_low, solution, j, k + 1, lane);
#pragma unroll
      for (int n = 0; n < 2; ++n)
        add_halves(sums[2 * j + n], high, low, {right_high[2 * n], right_high[2 * n + 1]},
                   {right_low[2 * n], right_low[2 * n + 1]});
    }
  }
  store_blocks();
  __syncwarp();
  if (block == 1) ptx::named_barrier_arrive(kFirstRowBarrier + barriers, 3 * 32);
  if (block == 2) ptx::named_barrier_arrive(kSecondRowBarrier + barriers, 2 * 32);
}

__device__ __forceinline__ void solve_rows(Sums& sums, uint32_t solution, float* scratch, const float* strength,
                                           const float* key_unit, int block, int lane, int barriers = 0) {
  solve_rows(sums, solution, scratch, ColumnFactors{strength, key_unit}, block, lane, barriers);
}

}  // namespace lethe::matrix_state
