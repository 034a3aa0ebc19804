#pragma once
// The gradients' pairs: P and dP of a chunk, keys by queries, weighted once; dk and dv from them.

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

/// A warpgroup: the pairs of every chunk, dk and dv.
template <typename Call>
__device__ __forceinline__ void sweep_pairs(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  constexpr bool kGated = Call::kGated, kHalf = Call::kHalf;
  constexpr int kBlocks = Call::kBlocks;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int j0 = 16 * call.warp + call.lane / 4;
  ptx::RingPosition at;
  uint32_t parity = 0;
  bool started = false;
  call.each_chunk([&](const auto& chunk) {
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    const ChunkGates& gates = call.gates(at.index);
    const char *const tiles = call.stage(at.index), *const query = tiles + Shared::kQuery,
                      *const key = tiles + Shared::kKey, *const value = tiles + Shared::kValue,
                      *const grad_values = tiles + Shared::kGradValues;
    float score_unit = 1.0f, grad_unit = 1.0f;
    uint32_t score_weights[16], grad_weights[16];
    {
      float scores[32], grads[32];
      ptx::undefined(scores);
      ptx::undefined(grads);
      ptx::fence_registers(scores);
      ptx::fence_registers(grads);
      ptx::wgmma_fence();
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        issue_product<Element, Major::kK, Major::kK>(scores, key + block * kPanel, query + block * kPanel, block > 0);
      issue_product<Element, Major::kK, Major::kK>(grads, value, grad_values, false);
      ptx::wgmma_commit();
      if (started && call.lane == 0) {
        ptx::bulk_wait_read<0>();  // the previous chunk's dk has left
        ptx::mbarrier_arrive(&small.grad_state_empty);
      }
      __syncwarp();
      started = true;
      ptx::wgmma_wait<0>();
      ptx::fence_registers(scores);
      ptx::fence_registers(grads);
      weigh_pairs<Element, kGated, Call::kNormalized>(scores, grads, gates, call.grad_normalizer(at.index), p.scale,
                                                      call.crossings(at.index).pairs[call.warp], place);
      ptx::mbarrier_wait(&small.pairs_empty, parity ^ 1);
      if constexpr (kHalf) {
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
        score_unit = unit_of(small.largest_pairs[0]);
        grad_unit = unit_of(small.largest_pairs[1]);
        if (call.warp == 0 && call.lane == 0) small.grad_unit = grad_unit;
      }
      pack_sums<Element>(score_weights, scores, reciprocal_of_power(score_unit));
      pack_sums<Element>(grad_weights, grads, reciprocal_of_power(grad_unit));
    }
    store_packed(ptx::shared_address(call.pairs()), grad_weights, place);
    ptx::fence_async_shared();
    arrive_warp(&small.pairs_full, call.lane);

    ptx::mbarrier_wait(&small.grad_state_full, parity);
    const float unit = kHalf ? small.grad_state_unit : 1.0f;
    [[maybe_unused]] const float near = unit * (kGated ? gates.read[j0] : 1.0f),
                                 far = unit * (kGated ? gates.read[j0 + 8] : 1.0f);
    float out_value[32];
    // Where nothing is scaled between the products with R and with pairs, they are one batch. Of two blocks dv comes first: there are no registers for both.
    constexpr bool kScaled = kGated || kHalf, kApart = kBlocks > 1;
    const auto issue_value_of_state = [&] {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        issue_product<Element, Major::kK, Major::kMN>(out_value, key + block * kPanel,
                                                      call.grad_state() + block * kPanel, block > 0);
      if constexpr (kScaled) ptx::wgmma_commit();
    };
    const auto issue_value_of_pairs = [&] {
      if constexpr (kScaled) {
        ptx::fence_registers(out_value);
        scale_rows(out_value, near * reciprocal_of_power(score_unit), far * reciprocal_of_power(score_unit));
        ptx::fence_registers(out_value);
        ptx::wgmma_fence();
      }
      issue_product<Element, Major::kMN>(out_value, score_weights, grad_values, true);
      ptx::wgmma_commit();
    };
    const auto store_value = [&] {
      ptx::fence_registers(out_value);
      ptx::fence_registers(score_weights);
      uint32_t packed[16];
      pack_sums<Element>(packed, out_value, score_unit);
      if (call.lane == 0) ptx::bulk_wait_read<0>();  // the previous chunk's dv has left
      __syncwarp();
      store_rows_by_map(call.memory + Shared::kOut, packed, p.maps[6], 0, chunk.first, call.b, call.h, place);
    };
    ptx::undefined(out_value);
    ptx::fence_registers(out_value);
    ptx::fence_registers(score_weights);
    ptx::fence_registers(grad_weights);
    ptx::wgmma_fence();
    issue_value_of_state();
    if constexpr (kApart) {
      if constexpr (kScaled) ptx::wgmma_wait<0>();
      issue_value_of_pairs();
      ptx::wgmma_wait<0>();
      store_value();
    } else if constexpr (!kScaled) {
      issue_value_of_pairs();
    }
    float out_key[kBlocks][32];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::undefined(out_key[block]);
      ptx::fence_registers(out_key[block]);
    }
    ptx::wgmma_fence();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      issue_product<Element, Major::kK, Major::kK>(out_key[block], value, call.grad_state() + block * kPanel, false);
    if constexpr (kScaled) {
      ptx::wgmma_commit();
      if constexpr (!kApart) {
        ptx::wgmma_wait<1>();
        issue_value_of_pairs();
        ptx::wgmma_wait<1>();
      } else {
        ptx::wgmma_wait<0>();
      }
      [[maybe_unused]] float dot[2] = {0.0f, 0.0f};
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        ptx::fence_registers(out_key[block]);
        scale_rows(out_key[block], near, far);
        if constexpr (Call::kNormalized)
          add_outer_product(out_key[block], kGated ? gates.read[j0] : 1.0f, kGated ? gates.read[j0 + 8] : 1.0f,
                            call.columns().grad_state + 64 * block, call.lane);
        if constexpr (kGated) add_dots<Element>(dot, out_key[block], key + block * kPanel, place);
        if constexpr (kHalf) scale_rows(out_key[block], reciprocal_of_power(grad_unit), reciprocal_of_power(grad_unit));
        ptx::fence_registers(out_key[block]);
      }
      if constexpr (kGated) store_dots(call.crossings(at.index).keys, dot, place);
      ptx::wgmma_fence();
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      issue_product<Element, Major::kMN>(out_key[block], grad_weights, query + block * kPanel, true);
    ptx::wgmma_commit();
    if constexpr (!kApart) {
      ptx::wgmma_wait<1>();
      store_value();
    }
    ptx::wgmma_wait<0>();
    ptx::fence_registers(grad_weights);
    arrive_warp(&small.empty[at.index], call.lane);
    ptx::named_barrier_sync(2, kComputing);  // all warps have read R, whose place dk takes
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::fence_registers(out_key[block]);
      if constexpr (Call::kNormalized && !kScaled)
        add_outer_product(out_key[block], 1.0f, 1.0f, call.columns().grad_state + 64 * block, call.lane);
      uint32_t packed[16];
      pack_sums<Element>(packed, out_key[block], grad_unit);
      store_rows_by_map(call.grad_state() + block * kPanel, packed, p.maps[5], 64 * block, chunk.first, call.b, call.h,
                        place);
    }
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (call.lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state
