#pragma once
// The forward's pairs: P of a chunk, queries by keys, weighted.

#include "optimized/cuda/matrix_state/chunk_gates.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// P without gates: zero for keys after the row.
__device__ __forceinline__ void weigh_scores(float (&scores)[32], Place at) {
  const int i0 = 16 * at.block + at.lane / 4, t = at.lane % 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    if (n / 2 > at.block) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[4 * n + e] = 0.0f;
    } else if (n / 2 == at.block) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (static_cast<unsigned>(8 * n + 2 * t + e % 2) > static_cast<unsigned>(i0 + 8 * (e / 2)))
          scores[4 * n + e] = 0.0f;
    }
  }
}

/// P weighted by D and the scale, zero for keys after the row. A warp leaves out the keys after its rows, and masks those before them where a cut is in the
/// chunk.
__device__ __forceinline__ void weigh_scores(float (&scores)[32], const ChunkGates& gate, float scale, Place at) {
  const int i0 = 16 * at.block + at.lane / 4, t = at.lane % 4;
  const int first_seen[2] = {gate.first_seen[i0], gate.first_seen[i0 + 8]};
  const float sum[2] = {gate.sum[i0], gate.sum[i0 + 8]};
  const bool cuts = gate.first_seen[kChunk - 1] > 0;
  // Of keys before the rows' own 16 tokens D is a product: from the key to the last of those, and from there.
  const float border = at.block > 0 ? gate.sum[16 * at.block - 1] : 0.0f;
  const float from_border[2] = {scale * exp2_approximate(sum[0] - border), scale * exp2_approximate(sum[1] - border)};
  const auto weigh_eight = [&](int n, auto own_tokens, auto masked) {
    constexpr bool kOwn = decltype(own_tokens)::value, kMasked = decltype(masked)::value;
    const int j = 8 * n + 2 * t;
    const float2 sum_j = *reinterpret_cast<const float2*>(&gate.sum[j]);
    [[maybe_unused]] float to_border[2];
    if constexpr (!kOwn) {
      to_border[0] = exp2_approximate(border - sum_j.x);
      to_border[1] = exp2_approximate(border - sum_j.y);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2, row = i0 + 8 * half;
      const bool seen = !kMasked || static_cast<unsigned>(j + e % 2 - first_seen[half]) <=
                                        static_cast<unsigned>(row - first_seen[half]);
      float& score = scores[4 * n + e];
      if constexpr (kOwn) score *= scale * exp2_approximate(sum[half] - (e % 2 ? sum_j.y : sum_j.x));
      else score *= from_border[half] * to_border[e % 2];
      score = seen ? score : 0.0f;
    }
  };
  // Each warp's part has code of its own, without branches; where a cut is in the chunk, all warps have the same.
  constexpr int kAnyBlock = -1;
  const auto weigh_all = [&](auto of_block) {
    constexpr int kBlock = decltype(of_block)::value;
    const int own = kBlock == kAnyBlock ? at.block : kBlock;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n / 2 > own) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[4 * n + e] = 0.0f;
      } else if (n / 2 == own) {
        weigh_eight(n, std::true_type{}, std::true_type{});
      } else {
        weigh_eight(n, std::false_type{}, std::bool_constant<kBlock == kAnyBlock>{});
      }
    }
  };
  if (cuts) weigh_all(std::integral_constant<int, kAnyBlock>{});
  else if (at.block == 0) weigh_all(std::integral_constant<int, 0>{});
  else if (at.block == 1) weigh_all(std::integral_constant<int, 1>{});
  else if (at.block == 2) weigh_all(std::integral_constant<int, 2>{});
  else weigh_all(std::integral_constant<int, 3>{});
}

/// What a lane's rows of P, weighted, are divided by: powers of two of float16, else 1.
template <bool kHalf>
__device__ __forceinline__ void row_units(float (&unit)[2], const float (&scores)[32]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unit[half] = 1.0f;
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int c = 0; c < 8; ++c)
        x = fmaxf(x, fmaxf(fabsf(scores[4 * c + 2 * half]), fabsf(scores[4 * c + 2 * half + 1])));
      // Not below 2^-40, by which sums are divided: a row may have no weight but that of the state.
      unit[half] = power_of_two_below(fmaxf(quad_max(x), 0x1p-40f));
    }
  }
}

}  // namespace lethe::matrix_state
