#pragma once
// A = P (I − β W) of a chunk, with which O = γ Q S + A (β ∘ X) and dN̄ = Aᵀ dO + (I − β W)ᵀ (D_C ∘ K) R, for inputs of float16.
//
// P N, of N = β ∘ R, is the same as A (β ∘ X). But where keys correlate its terms are larger than their sum, and P, R and what W adds are each rounded to 16 bits
// before it: of queries and keys without a sign 0.15 % of O, 0.25 % of dV and 0.27 % of dβ were found. A is rounded once; what rounds P where it meets W, and in
// reverse W in two parts, is less. Bfloat16, whose own rounding is eight times as large, does without.

#include "optimized/cuda/matrix_state/hopper/delta_rows.cuh"
#include "optimized/cuda/ptx/transpose.cuh"

namespace lethe::matrix_state {

/// Whether A takes the place of P; then Wᵀ is left for the backward in two parts.
template <typename Element>
inline constexpr bool kFolds = kInverseParts<Element> == 2;

/// Two numbers as float16, and what that leaves.
__device__ __forceinline__ uint32_t split_pair(uint32_t& low, float x, float y) {
  const uint32_t high = pack<__half>(x, y);
  const float2 rounded = unpack<__half>(high);
  low = pack<__half>(x - rounded.x, y - rounded.y);
  return high;
}

/// A warp's rows of P become those of P + P W, up to the diagonal's block. add(sums of two tiles, P's block k, k, j) adds the product with W's block (k, j),
/// weighted and negative. tile(k): of block k the first tile, an even constant.
template <typename Tile, typename Add>
__device__ __forceinline__ void fold_solution(Sums& pairs, int block, const Tile& tile, const Add& add) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {  // what block k adds reaches blocks up to k, which those after it don't read
    if (k > block) break;
    uint32_t left[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const x = &pairs[tile(k) + i / 2][i % 2 * 2];
      left[i] = pack<__half>(x[0], x[1]);
    }
#pragma unroll
    for (int j = 0; j <= k; ++j) add(reinterpret_cast<float(&)[2][4]>(pairs[tile(j)]), left, k, j);
  }
}

/// A warp's rows of P times factors of their columns and rows. scale_columns() and scale_rows() in turn spill twice as much of 64 rows.
__device__ __forceinline__ void scale_pairs(Sums& pairs, const float* factors, const float (&outer)[2], int lane) {
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    const float2 factor = *reinterpret_cast<const float2*>(&factors[8 * c + lane % 4 * 2]);
#pragma unroll
    for (int e = 0; e < 4; ++e) pairs[c][e] *= (e % 2 ? factor.y : factor.x) * outer[e / 2];
  }
}

/// The blocks that weigh_triangle<false> has left of its warp, which are right operands of their transposes, as right operands.
__device__ __forceinline__ void transpose_triangle(uint4* to, const uint4* blocks, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < 3; ++n) {
    const int number = warp + kWarps * n;
    if (number >= kLowerBlocks) break;
    const uint4 words = blocks[32 * number + lane];
    to[32 * number + lane] = {ptx::transposed(words.x), ptx::transposed(words.z), ptx::transposed(words.y),
                              ptx::transposed(words.w)};
  }
}

/// A warp's rows of P, weighted, become A by the blocks of transpose_triangle, all of them there.
__device__ __forceinline__ void fold_blocks(Sums& pairs, const uint4* solved, int block, int lane) {
  fold_solution(
      pairs, block, [](int k) { return 2 * k; },
      [&](float(&sums)[2][4], const uint32_t(&left)[4], int k, int j) {
        const uint4 words = solved[32 * lower_block(k, j) + lane];
        ptx::multiply_add<__half>(sums[0], left, words.x, words.y);
        ptx::multiply_add<__half>(sums[1], left, words.z, words.w);
      });
}

/// A warp's rows of A as blocks of right operands of their transpose; for kTransposes as blocks of left operands of that.
template <bool kTransposes>
__device__ __forceinline__ void store_folded_rows(uint4* to, const Sums& pairs, int block, int lane) {
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    if (k > block) break;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<__half>(pairs[2 * k + i / 2][i % 2 * 2], pairs[2 * k + i / 2][i % 2 * 2 + 1]);
      if constexpr (kTransposes) words[i] = ptx::transposed(words[i]);
    }
    to[32 * lower_block(block, k) + lane] = block_of<true>(words);
  }
}

// The backward has Wᵀ in two parts, each blocks of left operands.

/// A lane's words of what rounding has left of Wᵀ, of the blocks that weigh_triangle gives its warp.
__device__ __forceinline__ void load_low_parts(uint4 (&low)[3], const uint4* blocks, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < 3; ++n) {
    const int number = warp + kWarps * n;
    low[n] = number < kLowerBlocks ? blocks[32 * number + lane] : uint4{};
  }
}

/// weigh_triangle<true> of both parts: `blocks` has one and gets what is rounded, `lows` gets what that leaves.
template <typename Factor, typename Outer>
__device__ __forceinline__ void weigh_parts(uint4* blocks, uint4* lows, const uint4 (&low)[3], const Factor& factor,
                                            const Outer& outer, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < 3; ++n) {
    const int number = warp + kWarps * n;
    if (number >= kLowerBlocks) break;
    const int i = row_of_lower_block(number), j = number - lower_block(i, 0), column = 16 * i + lane % 4 * 2,
              row = 16 * j + lane / 4;
    const uint4 both[2] = {blocks[32 * number + lane], low[n]};
    const uint32_t of[2][4] = {{both[0].x, both[0].y, both[0].z, both[0].w},
                               {both[1].x, both[1].y, both[1].z, both[1].w}};
    const float2 of_column[2] = {factor(column), factor(column + 8)};
    const float of_row[2] = {outer(row), outer(row + 8)};
    uint32_t high[4], rest[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 x = unpack<__half>(of[0][e]), y = unpack<__half>(of[1][e]), w = of_column[e / 2];
      high[e] = split_pair(rest[e], (x.x + y.x) * w.x * of_row[e % 2], (x.y + y.y) * w.y * of_row[e % 2]);
    }
    blocks[32 * number + lane] = {high[0], high[1], high[2], high[3]};
    lows[32 * number + lane] = {rest[0], rest[1], rest[2], rest[3]};
  }
}

/// A warp's rows of P, weighted, become A by both parts.
__device__ __forceinline__ void fold_parts(Sums& pairs, const uint4* blocks, const uint4* lows, int block, int lane) {
  fold_solution(
      pairs, block, [](int k) { return 2 * k; },
      [&](float(&sums)[2][4], const uint32_t(&left)[4], int k, int j) {
        const uint4 words = blocks[32 * lower_block(k, j) + lane], rest = lows[32 * lower_block(k, j) + lane];
        ptx::multiply_add<__half>(sums[0], left, rest.x, rest.z);
        ptx::multiply_add<__half>(sums[1], left, rest.y, rest.w);
        ptx::multiply_add<__half>(sums[0], left, words.x, words.z);
        ptx::multiply_add<__half>(sums[1], left, words.y, words.w);
      });
}

}  // namespace lethe::matrix_state
