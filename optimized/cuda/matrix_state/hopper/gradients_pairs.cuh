#pragma once
// The gradients' pairs: P and dP of a chunk, keys by queries, weighted once.

#include "optimized/cuda/matrix_state/hopper/gradients_gates.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_shared.cuh"

namespace lethe::matrix_state {

/// P and dP weighted by D, zero for queries before the key; what their products give to d log f. A warp leaves out the queries before its keys, and
/// masks those after them where a cut is in the chunk. With a normaliser each query's dP has the gradient of z·q besides.
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
  // Of queries after the keys' own 16 tokens D is a product: from the key to the last of those, and from there.
  const float border = kGated ? gates.sum[16 * at.block + 15] : 0.0f;
  const float to_border[2] = {scale * exp2_approximate(sum[0] - border), scale * exp2_approximate(sum[1] - border)};
  PairSums pair_sums;
  const auto weigh = [&](int n, auto own_tokens, auto masked) {
    constexpr bool kOwn = decltype(own_tokens)::value, kMasked = decltype(masked)::value;
    const int i = 8 * n + 2 * t;
    [[maybe_unused]] float2 sum_i{0.0f, 0.0f}, beside{0.0f, 0.0f};
    if constexpr (kGated) sum_i = *reinterpret_cast<const float2*>(&gates.sum[i]);
    if constexpr (kNormalized) beside = *reinterpret_cast<const float2*>(&grad_normalizer[i]);
    [[maybe_unused]] float from_border[2], products[2][2];
    if constexpr (kGated && !kOwn) {
      from_border[0] = exp2_approximate(border - sum_i.x);
      from_border[1] = exp2_approximate(border - sum_i.y);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int half = e / 2, j = j0 + 8 * half;
      const bool seen = !kMasked || static_cast<unsigned>(i + e % 2 - j) <= static_cast<unsigned>(last_seen[half] - j);
      float weight = scale;
      if constexpr (kGated && kOwn) weight *= exp2_approximate(sum[half] - (e % 2 ? sum_i.y : sum_i.x));
      else if constexpr (kGated) weight = to_border[half] * from_border[e % 2];
      float &score = scores[4 * n + e], &grad = grads[4 * n + e];
      score = seen ? score * weight : 0.0f;
      if constexpr (kNormalized) grad += e % 2 ? beside.y : beside.x;
      if constexpr (kGated) products[half][e % 2] = seen && !(kOwn && i + e % 2 == j) ? score * grad : 0.0f;
      grad = seen ? grad * weight : 0.0f;
    }
    if constexpr (kGated) pair_sums.add(n, products[0], products[1]);
  };
  // Each warp's part has code of its own, without branches; where a cut is in the chunk, all warps have the same.
  constexpr int kAnyBlock = -1;
  const auto weigh_all = [&](auto of_block) {
    constexpr int kBlock = decltype(of_block)::value;
    const int own = kBlock == kAnyBlock ? at.block : kBlock;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n / 2 < own) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[4 * n + e] = grads[4 * n + e] = 0.0f;
      } else if (n / 2 == own) {
        weigh(n, std::true_type{}, std::true_type{});
      } else {
        weigh(n, std::false_type{}, std::bool_constant<kBlock == kAnyBlock>{});
      }
    }
  };
  if (cuts) weigh_all(std::integral_constant<int, kAnyBlock>{});
  else if (at.block == 0) weigh_all(std::integral_constant<int, 0>{});
  else if (at.block == 1) weigh_all(std::integral_constant<int, 1>{});
  else if (at.block == 2) weigh_all(std::integral_constant<int, 2>{});
  else weigh_all(std::integral_constant<int, 3>{});
  if constexpr (kGated) pair_sums.store(crossings, at);
}

/// Bits of a lane's pairs, the same in all chunks: whether the query isn't before the key, and whether it is after it.
struct PairMasks {
  uint32_t seen = 0, after = 0;

  static __device__ __forceinline__ PairMasks of(Place at) {
    const int first = 16 * at.block + at.lane / 4 - 2 * (at.lane % 4);
    PairMasks masks;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int place = 8 * (i / 4) + i % 2 - 8 * (i / 2 % 2);
      masks.seen |= (place >= first ? 1u : 0u) << i;
      masks.after |= (place > first ? 1u : 0u) << i;
    }
    const auto opaque = [](uint32_t bits) { return static_cast<uint32_t>(ptx::opaque(static_cast<int>(bits))); };
    return {opaque(masks.seen), opaque(masks.after)};
  }
};

/// weigh_pairs with gates and no normaliser by one way for all warps: four ways are more than the instruction cache has room for. A pair that is not
/// seen has the weight 0; only beside a cut is it selected, so that a later token of one sequence that is no number spoils the chunk's gradients
/// before it.
__device__ __forceinline__ void weigh_pairs_in_one_way(float (&scores)[32], float (&grads)[32], const ChunkGates& gates,
                                                       float scale, float* crossings, const PairMasks& masks,
                                                       Place at) {
  const int j0 = 16 * at.block + at.lane / 4, of_lane = 2 * (at.lane % 4);
  const float sum[2] = {gates.sum[j0], gates.sum[j0 + 8]};
  uint32_t seen = masks.seen, after = masks.after;
  if (gates.first_seen[0] > 0) {  // a cut: nothing of queries after it, were it no number
    const int last_seen[2] = {kChunk - 1 - gates.first_seen[j0], kChunk - 1 - gates.first_seen[j0 + 8]};
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (8 * (i / 4) + of_lane + i % 2 > last_seen[i / 2 % 2]) {
        seen &= ~(1u << i);
        after &= ~(1u << i);
        scores[i] = grads[i] = 0.0f;
      }
  }
  PairSums pair_sums;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float2 sum_i = *reinterpret_cast<const float2*>(&gates.sum[8 * n + of_lane]);
    float products[2][2];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = 4 * n + e;
      float &score = scores[i], &grad = grads[i];
      const float weight = seen >> i & 1 ? scale * exp2_approximate(sum[e / 2] - (e % 2 ? sum_i.y : sum_i.x)) : 0.0f;
      score *= weight;
      products[e / 2][e % 2] = after >> i & 1 ? score * grad : 0.0f;
      grad *= weight;
    }
    pair_sums.add(n, products[0], products[1]);
  }
  pair_sums.store(crossings, at);
}

/// P and dP of a chunk, weighted, by a warpgroup. `meanwhile` runs under their products.
template <typename Call, typename Meanwhile>
__device__ __forceinline__ void compute_pairs(const Call& call, int index, float (&scores)[32], float (&grads)[32],
                                              Meanwhile&& meanwhile, const PairMasks& masks = {}) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  const char *const tiles = call.stage(index), *const query = tiles + Shared::kQuery, *const key = tiles + Shared::kKey;
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
  static_assert(!Call::kOneWay || !Call::kNormalized);
  if constexpr (Call::kOneWay)
    weigh_pairs_in_one_way(scores, grads, call.gates(index), call.pair_scale(), call.crossings(index).pairs[call.warp],
                           masks, {call.warp, call.lane});
  else
    weigh_pairs<Element, Call::kGated, Call::kNormalized>(scores, grads, call.gates(index), call.grad_normalizer(index),
                                                          call.pair_scale(), call.crossings(index).pairs[call.warp],
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

/// P and dP of a chunk in 16 bits, without units, to shared memory, which the chunk before has left: by a warpgroup.
template <typename Call>
__device__ __forceinline__ void store_pairs(const Call& call, const uint32_t (&scores)[16], const uint32_t (&grads)[16],
                                            Place at) {
  store_packed(ptx::shared_address(call.pairs()), grads, at);
  store_packed(ptx::shared_address(call.scores()), scores, at);
  ptx::fence_async_shared();
  arrive_warp(&call.small().pairs_full, call.lane);
}

/// The same from floats.
template <typename Call>
__device__ __forceinline__ void store_pairs(const Call& call, const float (&scores)[32], const float (&grads)[32],
                                            Place at) {
  using Element = typename Call::Element;
  const PairUnits units = pair_units(call, scores, grads);
  uint32_t packed[16];
  pack_sums<Element>(packed, grads, reciprocal_of_power(units.grad));
  store_packed(ptx::shared_address(call.pairs()), packed, at);
  pack_sums<Element>(packed, scores, reciprocal_of_power(units.score));
  store_packed(ptx::shared_address(call.scores()), packed, at);
  ptx::fence_async_shared();
  arrive_warp(&call.small().pairs_full, call.lane);
}

}  // namespace lethe::matrix_state
