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

/// A chunk's gates as its pairs read them.
struct ForwardGates : ChunkGates {
  /// From key j to the last token before block b of 16, b = 1, 2 and 3: at border(b) + j, for the keys before that block.
  float to_border[16 + 32 + 48];

  static __device__ constexpr int border(int b) { return 8 * b * (b - 1); }
};

/// The warp that has prepared the rest: two keys a lane.
__device__ __forceinline__ void prepare_borders(ForwardGates& gate, int lane) {
  __syncwarp();
  const float2 sum = *reinterpret_cast<const float2*>(&gate.sum[2 * lane]);
#pragma unroll
  for (int b = 1; b < 4; ++b) {
    const float border = gate.sum[16 * b - 1];
    const float2 to_border{exp2_approximate(fminf(border - sum.x, 0.0f)),
                           exp2_approximate(fminf(border - sum.y, 0.0f))};
    if (lane / 8 < b) *reinterpret_cast<float2*>(&gate.to_border[ForwardGates::border(b) + 2 * lane]) = to_border;
  }
}

/// P weighted by D and the scale, zero for keys after the row. A warp leaves out the keys after its rows, and masks those before them where a cut is in the
/// chunk.
__device__ __forceinline__ void weigh_scores(float (&scores)[32], const ForwardGates& gate, float scale, Place at) {
  const int g = at.lane / 4, t = at.lane % 4, i0 = 16 * at.block + g;
  const float sum[2] = {gate.sum[i0], gate.sum[i0 + 8]};
  const bool cuts = gate.first_seen[kChunk - 1] > 0;
  // Of keys before the rows' own 16 tokens D is a product: from the key to the last of those, and from there.
  const float border = at.block > 0 ? gate.sum[16 * at.block - 1] : 0.0f;
  const float from_border[2] = {scale * exp2_approximate(sum[0] - border), scale * exp2_approximate(sum[1] - border)};
  const auto weigh_before = [&](float(&four)[4], const float* to_border) {
    const float2 to = *reinterpret_cast<const float2*>(to_border + 2 * t);
#pragma unroll
    for (int e = 0; e < 4; ++e) four[e] *= from_border[e / 2] * (e % 2 ? to.y : to.x);
  };
  const auto weigh_own = [&](float& score, int half, float sum_j) {
    score *= scale * exp2_approximate(sum[half] - sum_j);
  };
  const auto eight = [&](int n) -> float(&)[4] { return *reinterpret_cast<float(*)[4]>(&scores[4 * n]); };
  if (cuts) {  // all warps have the same code
    const int first_seen[2] = {gate.first_seen[i0], gate.first_seen[i0 + 8]};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int j = 8 * n + 2 * t;
      float(&four)[4] = eight(n);
      if (n / 2 < at.block) {
        weigh_before(four, &gate.to_border[ForwardGates::border(at.block) + 8 * n]);
      } else if (n / 2 == at.block) {
        const float2 sum_j = *reinterpret_cast<const float2*>(&gate.sum[j]);
#pragma unroll
        for (int e = 0; e < 4; ++e) weigh_own(four[e], e / 2, e % 2 ? sum_j.y : sum_j.x);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int first = first_seen[e / 2], row = i0 + 8 * (e / 2);
        if (static_cast<unsigned>(j + e % 2 - first) > static_cast<unsigned>(row - first)) four[e] = 0.0f;
      }
    }
    return;
  }
  // Each warp's part has code of its own, without branches.
  const bool seen[2] = {2 * t <= g, 2 * t + 1 <= g};  // of eight rows and their own eight keys
  const auto weigh_all = [&](auto of_block) {
    constexpr int kBlock = decltype(of_block)::value;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float(&four)[4] = eight(n);
      if (n / 2 < kBlock) {
        weigh_before(four, &gate.to_border[ForwardGates::border(kBlock) + 8 * n]);
        continue;
      }
      const float2 sum_j = *reinterpret_cast<const float2*>(&gate.sum[8 * n + 2 * t]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (n / 2 > kBlock || n % 2 > e / 2) {
          four[e] = 0.0f;
        } else {
          weigh_own(four[e], e / 2, e % 2 ? sum_j.y : sum_j.x);
          if (n % 2 == e / 2) four[e] = seen[e % 2] ? four[e] : 0.0f;
        }
      }
    }
  };
  if (at.block == 0) weigh_all(std::integral_constant<int, 0>{});
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

/// Weighted rows of P as a left operand, in their units.
template <typename Element>
__device__ __forceinline__ void pack_weights(uint32_t (&weights)[16], float (&unit)[2], float (&scores)[32]) {
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  row_units<kHalf>(unit, scores);
  if constexpr (kHalf) scale_rows(scores, reciprocal_of_power(unit[0]), reciprocal_of_power(unit[1]));
  pack_sums<Element>(weights, scores, 1.0f);
}

/// P of the first chunk, weighted.
template <typename Call>
__device__ __forceinline__ void compute_first_weights(const Call& call, float (&scores)[32]) {
  ptx::undefined(scores);
  ptx::fence_registers(scores);
  ptx::wgmma_fence();
  call.issue_scores(scores, call.stage(0));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(scores);
  call.weigh(scores, 0);
}

}  // namespace lethe::matrix_state
