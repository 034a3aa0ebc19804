#pragma once
// Blocks of 16 × 16 of a chunk's triangle, all of one warp: their products, and those on the diagonal solved.

#include "optimized/cuda/matrix_state/delta_parts.cuh"
#include "optimized/cuda/ptx/transpose.cuh"

namespace lethe::matrix_state {

/// Of lane 4g + t, tile n, number e: row g + 8·(e / 2), column 8n + 2t + e % 2.
using Block = float[2][4];

/// A block as bfloat16 and what that leaves, whose range is that of float: a left operand, and the right operands of its transpose.
struct Parts {
  uint32_t high[4], low[4];

  __device__ __forceinline__ explicit Parts(const Block& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&pair)[4] = x[i / 2];
      const int e = i % 2 * 2;
      high[i] = pack<__nv_bfloat16>(pair[e], pair[e + 1]);
      const float2 rounded = unpack<__nv_bfloat16>(high[i]);
      low[i] = pack<__nv_bfloat16>(pair[e] - rounded.x, pair[e + 1] - rounded.y);
    }
  }

  /// Of the transpose.
  __device__ __forceinline__ Parts transposed() const {
    Parts other = *this;
    transpose(other.high);
    transpose(other.low);
    return other;
  }

 private:
  __device__ static __forceinline__ void transpose(uint32_t (&words)[4]) {
    const uint32_t upper = ptx::transposed(words[2]);
    words[2] = ptx::transposed(words[1]);
    words[0] = ptx::transposed(words[0]);
    words[1] = upper;
    words[3] = ptx::transposed(words[3]);
  }
};

/// sum = left · rightᵀ, or += it, without what two low parts give.
template <bool kAdds>
__device__ __forceinline__ void multiply_parts(Block& sum, const Parts& left, const Parts& right) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const float4 zero{0.0f, 0.0f, 0.0f, 0.0f};
    ptx::multiply_add<__nv_bfloat16>(sum[n], left.high, right.low[n], right.low[2 + n],
                                     kAdds ? float4{sum[n][0], sum[n][1], sum[n][2], sum[n][3]} : zero);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) ptx::multiply_add<__nv_bfloat16>(sum[n], left.low, right.high[n], right.high[2 + n]);
#pragma unroll
  for (int n = 0; n < 2; ++n) ptx::multiply_add<__nv_bfloat16>(sum[n], left.high, right.high[n], right.high[2 + n]);
}

/// The four blocks on the diagonal in shared memory, 1 KB each, by columns: each 16 floats in pieces of four. Two columns lie in 128 bytes; which of them
/// comes first, and the order of the pieces, are such that neither a fragment's lanes nor columns' pieces meet in a bank.
struct DiagonalBlocks {
  char* memory;  ///< a multiple of 128
  int lane;

  /// visit(n, e, address) of a lane's numbers of block `block`, a constant.
  template <typename Visit>
  __device__ __forceinline__ void each(int block, const Visit& visit) const {
    const int g = lane / 4, t = lane % 4;
    const int place = 128 * t + ((t ^ block) % 2 << 6 | (g / 4 ^ t) << 4 | g % 4 << 2);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        visit(n, e, reinterpret_cast<float*>(memory + (place ^ (e % 2 << 6 | e / 2 << 5)) + 1024 * block + 512 * n));
  }
  __device__ __forceinline__ void store(const Block& x, int block) const {
    each(block, [&](int n, int e, float* at) { *at = x[n][e]; });
  }
  __device__ __forceinline__ void load(Block& x, int block) const {
    each(block, [&](int n, int e, const float* at) { x[n][e] = *at; });
  }
  /// The block's transpose.
  __device__ __forceinline__ void load_transposed(Block& x, int block) const {
    const int g = lane / 4, t = lane % 4;
    const int place = g / 2 * 128 + ((g ^ g / 2 ^ block) % 2 << 6 | (t / 2 ^ g / 2) << 4 | t % 2 << 3);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 pair = *reinterpret_cast<const float2*>(memory + (place ^ n << 5) + 1024 * block + 512 * half);
        x[n][2 * half] = pair.x, x[n][2 * half + 1] = pair.y;
      }
  }

  /// L = (I − N)⁻¹ of blocks 2·pass and 2·pass + 1, of which N is here, half a warp each, a lane a column, from the first row on: each row's number is
  /// done when what those before it give is added. Returns the number that was on the diagonal: of token 32·pass + lane.
  __device__ __forceinline__ float solve(int pass) const {
    const int own = lane % 16, block = 2 * pass + lane / 16;
    char* const begin = memory + 1024 * block;
    const int order = own / 2 % 4;
    char* const column = begin + own / 2 * 128 + ((own ^ own / 2 ^ block) % 2 << 6);
    const auto piece = [&](int i) { return reinterpret_cast<float4*>(column + ((i ^ order) << 4)); };
    float* const diagonal = reinterpret_cast<float*>(piece(own / 4)) + own % 4;
    const float square = *diagonal;
    *diagonal = 0.0f;
    __syncwarp();
    float solved[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 x = *piece(i);
      solved[4 * i] = x.x, solved[4 * i + 1] = x.y, solved[4 * i + 2] = x.z, solved[4 * i + 3] = x.w;
    }
    const char* const halves[2] = {begin + (block % 2 << 6), begin + ((block + 1) % 2 << 6)};
#pragma unroll
    for (int j = 0; j < 15; ++j) {
      const char* const multipliers = halves[(j ^ j / 2) % 2] + j / 2 * 128;
#pragma unroll
      for (int i = (j + 1) / 4; i < 4; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(multipliers + ((i ^ j / 2 % 4) << 4));
        if (4 * i > j) solved[4 * i] = fmaf(x.x, solved[j], solved[4 * i]);
        if (4 * i + 1 > j) solved[4 * i + 1] = fmaf(x.y, solved[j], solved[4 * i + 1]);
        if (4 * i + 2 > j) solved[4 * i + 2] = fmaf(x.z, solved[j], solved[4 * i + 2]);
        if (4 * i + 3 > j) solved[4 * i + 3] = fmaf(x.w, solved[j], solved[4 * i + 3]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) *piece(i) = {solved[4 * i], solved[4 * i + 1], solved[4 * i + 2], solved[4 * i + 3]};
    *diagonal = 1.0f;
    return square;
  }
};

}  // namespace lethe::matrix_state
