#pragma once
// The gradients' pairs: P and dP of a chunk, keys by queries, weighted once.

#include "optimized/cuda/matrix_state/hopper/gradients_shared.cuh"
#include "optimized/cuda/tile/row_sums.cuh"

namespace lethe::matrix_state {

/// Of a warp's 16 keys' weighted pairs M [16, 64] by query: Σ_{j < l} Σ_{i ≥ l} M_ji of each l. Every term is a pair that gate l separates. Columns of 8
/// queries are added from the last one on. Those after the keys' own 16 are summed over the keys, and over the later queries at the end.
struct KeyCrossings {
  const int block, g, t;
  float sums[16] = {}, later[2] = {};

  __device__ explicit KeyCrossings(Place at) : block(at.block), g(at.lane / 4), t(at.lane % 4) {}

  /// M of queries 8n + 2t and the next one, by the keys g and g + 8.
  __device__ __forceinline__ void add(int n, const float (&near)[2], const float (&far)[2]) {
    if (n / 2 > block) {
      sums[2 * n] = near[0] + far[0];
      sums[2 * n + 1] = near[1] + far[1];
      later[0] += near[0] + near[1];
      later[1] += far[0] + far[1];
    } else if (n / 2 == block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float m0 = half ? far[0] : near[0], m1 = half ? far[1] : near[1];
        float& after = later[half];
        if (n % 2) after = quad_sum(after);
        float sum = m0 + m1;
        float other = __shfl_down_sync(kAllLanes, sum, 1, 4);
        if (t < 3) sum += other;
        other = __shfl_down_sync(kAllLanes, sum, 2, 4);
        if (t < 2) sum += other;
        other = __shfl_down_sync(kAllLanes, sum, 1, 4);
        const float here = after + (t == 3 ? 0.0f : other) + m1;
        const int l = 8 * n + 2 * t, j = 16 * block + g + 8 * half;
        if (l > j) sums[2 * n] += here + m0;
        if (l + 1 > j) sums[2 * n + 1] += here;
        after += __shfl_sync(kAllLanes, sum, 0, 4);
      }
    }
  }

  __device__ __forceinline__ void store(float* to, int lane) {
    const float2 two = tile::sums_of_rows(sums, lane);
    float sum = two.x + two.y;  // over this lane's queries and all later ones, where those are after the keys
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_down_sync(kAllLanes, sum, step);
      if (lane + step < 32) sum += other;
    }
    const float beyond = __shfl_down_sync(kAllLanes, sum, 1);
    float2 result = two;
    if (lane / 8 > block) {
      result.y = two.y + (lane == 31 ? 0.0f : beyond);
      result.x = sum;
    }
    *reinterpret_cast<float2*>(to + 2 * lane) = result;
  }
};

/// P and dP weighted by D, zero for queries before the key; what their products give to d log f. A warp leaves out the queries before its keys, and masks
/// those after them where a cut is in the chunk. With a normaliser each query's dP has the gradient of z·q besides.
template <typename Element, bool kGated, bool kNormalized>
__device__ __forceinline__ void weigh_pairs(float (&scores)[32], float (&grads)[32], const ChunkGates& gates,
                                            const float* grad_normalizer, float scale, float* crossings, Place at) {
  constexpr int kFlip = kChunk - 1;
  const int j0 = 16 * at.block + at.lane / 4, t = at.lane % 4;
  // A key's queries are those from it on, up to the last one that no cut separates from it.
  const int last_seen[2] = {kGated ? kFlip - gates.first_seen[j0] : kFlip,
                            kGated ? kFlip - gates.first_seen[j0 + 8] : kFlip};
  const bool cuts = kGated && gates.first_seen[0] > 0;
  const float sum[2] = {kGated ? gates.sum[j0] : 0.0f, kGated ? gates.sum[j0 + 8] : 0.0f};
  KeyCrossings crossing(at);
  const auto weigh = [&](int n, auto masked) {
    const int i = 8 * n + 2 * t;
    const float2 sum_i = kGated ? *reinterpret_cast<const float2*>(&gates.sum[i]) : float2{0.0f, 0.0f};
    [[maybe_unused]] float products[2][2];
    [[maybe_unused]] float2 beside{0.0f, 0.0f};
    if constexpr (kNormalized) beside = *reinterpret_cast<const float2*>(&grad_normalizer[i]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2, j = j0 + 8 * half;
      const bool seen = !decltype(masked)::value ||
                        static_cast<unsigned>(i + e % 2 - j) <= static_cast<unsigned>(last_seen[half] - j);
      const float weight = kGated ? scale * exp2_approximate(sum[half] - (e % 2 ? sum_i.y : sum_i.x)) : scale;
      float &score = scores[4 * n + e], &grad = grads[4 * n + e];
      score = seen ? score * weight : 0.0f;
      if constexpr (kNormalized) grad += e % 2 ? beside.y : beside.x;
      if constexpr (kGated) products[half][e % 2] = seen ? score * grad : 0.0f;
      grad = seen ? grad * weight : 0.0f;
    }
    if constexpr (kGated) crossing.add(n, products[0], products[1]);
  };
#pragma unroll
  for (int n = 7; n >= 0; --n) {
    if (n / 2 < at.block) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[4 * n + e] = grads[4 * n + e] = 0.0f;
    } else if (n / 2 == at.block || cuts) {
      weigh(n, std::true_type{});
    } else {
      weigh(n, std::false_type{});
    }
  }
  if constexpr (kGated) crossing.store(crossings, at.lane);
}

/// P and dP of a chunk, weighted, by a warpgroup. `meanwhile` runs under their products.
template <typename Call, typename Meanwhile>
__device__ __forceinline__ void compute_pairs(const Call& call, int index, float (&scores)[32], float (&grads)[32],
                                              Meanwhile&& meanwhile) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  const char *const tiles = call.stage(index), *const query = tiles + Shared::kQuery,
                    *const key = tiles + Shared::kKey;
  ptx::undefined(scores);
  ptx::undefined(grads);
  ptx::fence_registers(scores);
  ptx::fence_registers(grads);
  ptx::wgmma_fence();
#pragma unroll
  for (int block = 0; block < Call::kBlocks; ++block)
    issue_product<Element, Major::kK, Major::kK>(scores, key + block * kPanel, query + block * kPanel, block > 0);
  issue_product<Element, Major::kK, Major::kK>(grads, tiles + Shared::kValue, tiles + Shared::kGradValues, false);
  ptx::wgmma_commit();
  meanwhile();
  ptx::wgmma_wait<0>();
  ptx::fence_registers(scores);
  ptx::fence_registers(grads);
  weigh_pairs<Element, Call::kGated, Call::kNormalized>(scores, grads, call.gates(index), call.grad_normalizer(index),
                                                        call.p.scale, call.crossings(index).pairs[call.warp],
                                                        {call.warp, call.lane});
}

/// What P and dP of a chunk are divided by: powers of two of float16, else 1.
struct PairUnits {
  float score, grad;
};

/// Of a chunk, after the one before was read: by a warpgroup.
template <typename Call>
__device__ __forceinline__ PairUnits pair_units(const Call& call, const float (&scores)[32], const float (&grads)[32]) {
  PairUnits units{1.0f, 1.0f};
  if constexpr (Call::kHalf) {
    auto& small = call.small();
    const float x = largest_of_warp(largest_of(scores)), y = largest_of_warp(largest_of(grads));
    if (call.lane == 0) {
      small.largest_pairs[0][call.warp] = x;
      small.largest_pairs[1][call.warp] = y;
    }
    ptx::named_barrier_sync(2, kComputing);
    // P and dP come up to 2^14, so that rows 2^-28 times as large keep all their bits. Not below 2^-40, by which sums are divided.
    const auto unit_of = [](const float(&all)[kWarps]) {
      return power_of_two_below(fmaxf(fmaxf(fmaxf(all[0], all[1]), fmaxf(all[2], all[3])), 0x1p-40f)) * 0x1p-14f;
    };
    units = {unit_of(small.largest_pairs[0]), unit_of(small.largest_pairs[1])};
    if (call.warp == 0 && call.lane == 0) {
      small.score_unit = units.score;
      small.grad_unit = units.grad;
    }
  }
  return units;
}

}  // namespace lethe::matrix_state
