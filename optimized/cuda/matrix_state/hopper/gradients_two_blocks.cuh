#pragma once
// The gradients of a state of 65 to 128 rows, for whose results shared memory has no place but that of operands: dk and dv by the warpgroup of the pairs,
// dq by another.

#include "optimized/cuda/matrix_state/hopper/gradients_pairs.cuh"

namespace lethe::matrix_state {

/// A warpgroup: the pairs of every chunk, dk and dv.
template <typename Call>
__device__ __forceinline__ void sweep_pairs_and_keys(const Call& call) {
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
      compute_pairs(call, at.index, scores, grads, [&] {
        if (started && arrives(call.lane)) {
          ptx::bulk_wait_read<0>();  // the previous chunk's dk has left
          ptx::mbarrier_arrive(&small.grad_state_empty);
        }
        __syncwarp();
        started = true;
      });
      ptx::mbarrier_wait(&small.pairs_empty, parity ^ 1);
      const PairUnits units = pair_units(call, scores, grads);
      score_unit = units.score;
      grad_unit = units.grad;
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
    // Where nothing is scaled between the products with R and with pairs, they are one batch. dv comes first: there are no registers for both.
    constexpr bool kScaled = kGated || kHalf;
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
    if constexpr (kScaled) ptx::wgmma_wait<0>();
    issue_value_of_pairs();
    ptx::wgmma_wait<0>();
    store_value();
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
      ptx::wgmma_wait<0>();
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

/// A warpgroup: dq of every chunk.
template <typename Call>
__device__ __forceinline__ void sweep_queries(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  constexpr bool kGated = Call::kGated, kHalf = Call::kHalf;
  constexpr int kBlocks = Call::kBlocks;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int i0 = 16 * call.warp + call.lane / 4;
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto& chunk) {
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
    const ChunkGates& gates = call.gates(at.index);
    const char* const tiles = call.stage(at.index);
    uint32_t packed[kBlocks][16];
    [[maybe_unused]] float dot[2] = {0.0f, 0.0f}, grad_unit = 1.0f;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float out[32];
      ptx::undefined(out);
      ptx::fence_registers(out);
      ptx::wgmma_fence();
      issue_product<Element, Major::kK, Major::kK>(out, tiles + Shared::kGradValues,
                                                   call.state(chunk.slot) + block * kPanel, false);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      if constexpr (kGated || kHalf) {
        // E: the gates after the chunk's first token, which R's update has with the scale, and that one.
        const float near = kGated ? gates.write[i0] * gates.entry : 1.0f,
                    far = kGated ? gates.write[i0 + 8] * gates.entry : 1.0f;
#pragma unroll
        for (int i = 0; i < 32; ++i)
          out[i] *= (i % 4 < 2 ? near : far) * (kHalf ? small.state_units[chunk.slot][kWarps * block + i / 8] : 1.0f);
      }
      if constexpr (Call::kNormalized) {
        const float* const x = call.grad_normalizer(at.index);
        const auto weight = [&](int row) { return kGated ? gates.write[row] * gates.entry * x[row] : x[row]; };
        add_outer_product(out, weight(i0), weight(i0 + 8), call.columns().states[chunk.slot] + 64 * block, call.lane);
      }
      if (block + 1 == kBlocks) arrive_warp(&small.state_empty[chunk.slot], call.lane);
      if constexpr (kGated) add_dots<Element>(dot, out, tiles + Shared::kQuery + block * kPanel, place);

      if (block == 0) {
        ptx::mbarrier_wait(&small.pairs_full, parity);
        if constexpr (kHalf) grad_unit = small.grad_unit;
      }
      if constexpr (kHalf) scale_rows(out, reciprocal_of_power(grad_unit), reciprocal_of_power(grad_unit));
      ptx::fence_registers(out);
      ptx::wgmma_fence();
      issue_product<Element, Major::kMN, Major::kMN>(out, call.pairs(), tiles + Shared::kKey + block * kPanel, true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      pack_sums<Element>(packed[block], out, grad_unit);
    }
    if constexpr (kGated) store_dots(call.crossings(at.index).queries, dot, place);
    arrive_warp(&small.empty[at.index], call.lane);
    ptx::named_barrier_sync(3, kComputing);  // all warps have read dP, whose place dq takes
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      store_rows_by_map(call.pairs(), packed[block], p.maps[4], 64 * block, chunk.first, call.b, call.h, place);
      if (call.lane == 0) ptx::bulk_wait_read<0>();
      __syncwarp();
    }
    if (arrives(call.lane)) ptx::mbarrier_arrive(&small.pairs_empty);
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (call.lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state
