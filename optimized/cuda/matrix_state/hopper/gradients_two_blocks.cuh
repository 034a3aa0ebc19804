#pragma once
// The gradients of a state of 65 to 128 rows, for whose results shared memory has no place but that of operands: dv by the warpgroup of the pairs, dk
// and dq by another. dk leaves from R's place, dq from those of the chunk's values and of dP.

#include "optimized/cuda/matrix_state/hopper/gradients_pairs.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_tiles.cuh"

namespace lethe::matrix_state {

/// Of the warpgroups of sweep_pairs_and_values and sweep_queries_and_keys: all warps of the first have read R.
constexpr int kGradStateRead = 4;

/// A warpgroup: the pairs of every chunk, and dv.
template <typename Call>
__device__ __forceinline__ void sweep_pairs_and_values(const Call& call) {
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
  call.each_chunk([&](const auto& chunk) {
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    const char *const tiles = call.stage(at.index), *const key = tiles + Shared::kKey,
                      *const grad_values = tiles + Shared::kGradValues;
    float score_unit = 1.0f;
    uint32_t weights[16];
    {
      float scores[32], grads[32];
      compute_pairs(call, at.index, scores, grads, [] {});
      ptx::mbarrier_wait(&small.pairs_empty, parity ^ 1);
      const PairUnits units = pair_units(call, scores, grads);
      score_unit = units.score;
      pack_sums<Element>(weights, grads, reciprocal_of_power(units.grad));
      store_packed(ptx::shared_address(call.pairs()), weights, place);
      pack_sums<Element>(weights, scores, reciprocal_of_power(score_unit));
    }
    ptx::fence_async_shared();
    arrive_warp(&small.pairs_full, call.lane);

    ptx::mbarrier_wait(&small.grad_state_full, parity);
    float out[32];
    ptx::undefined(out);
    ptx::fence_registers(out);
    ptx::fence_registers(weights);
    ptx::wgmma_fence();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      issue_product<Element, Major::kK, Major::kMN>(out, key + block * kPanel, call.grad_state() + block * kPanel,
                                                    block > 0);
    // Where nothing is scaled between the products with R and with pairs, they are one batch.
    if constexpr (kGated || kHalf) {
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      ptx::named_barrier_arrive(kGradStateRead, 2 * kComputing);
      const float unit = (kHalf ? small.grad_state_unit : 1.0f) * reciprocal_of_power(score_unit);
      const ChunkGates& gates = call.gates(at.index);
      scale_rows(out, unit * (kGated ? gates.read[j0] : 1.0f), unit * (kGated ? gates.read[j0 + 8] : 1.0f));
      ptx::fence_registers(out);
      ptx::wgmma_fence();
    }
    issue_product<Element, Major::kMN>(out, weights, grad_values, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::fence_registers(out);
    ptx::fence_registers(weights);
    if constexpr (!kGated && !kHalf) ptx::named_barrier_arrive(kGradStateRead, 2 * kComputing);
    arrive_warp(&small.empty[at.index], call.lane);
    uint32_t packed[16];
    pack_sums<Element>(packed, out, score_unit);
    if (call.lane == 0) ptx::bulk_wait_read<0>();  // the previous chunk's dv has left
    __syncwarp();
    store_rows_by_map(call.memory + Shared::kOut, packed, p.maps[6], call.column(), chunk.first, call.b, call.h, place);
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (call.lane == 0) ptx::bulk_wait<0>();
}

/// A warpgroup: dk and dq of every chunk. One product runs while the sums of the one before are scaled and their dot products computed.
template <typename Call>
__device__ __forceinline__ void sweep_queries_and_keys(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  constexpr bool kGated = Call::kGated, kHalf = Call::kHalf, kNormalized = Call::kNormalized;
  constexpr int kBlocks = Call::kBlocks;
  static_assert(kBlocks == 2);
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int i0 = 16 * call.warp + call.lane / 4;
  ptx::RingPosition at;
  uint32_t parity = 0, last_stage = 0;
  bool started = false;
  const auto release_last = [&] {
    if (started && arrives(call.lane)) {
      ptx::bulk_wait_read<0>();  // the previous chunk's dq has left
      ptx::mbarrier_arrive(&small.pairs_empty);
      ptx::mbarrier_arrive(&small.empty[last_stage]);
    }
    __syncwarp();
  };
  call.each_chunk([&](const auto& chunk) {
    const ChunkGates& gates = call.gates(at.index);
    char* const tiles = call.stage(at.index);
    const char *const query = tiles + Shared::kQuery, *const key = tiles + Shared::kKey,
                      *const grad_values = tiles + Shared::kGradValues;
    char* const value = tiles + Shared::kValue;
    float out[kBlocks][32];
    const auto start = [&](int block) {
      ptx::undefined(out[block]);
      ptx::fence_registers(out[block]);
      ptx::wgmma_fence();
    };
    const auto store = [&](int block, float unit, char* tile, const CUtensorMap& map) {
      uint32_t packed[16];
      pack_sums<Element>(packed, out[block], unit);
      store_rows_by_map(tile, packed, map, 64 * block, chunk.first, call.b, call.h, place, call.adds());
    };
    float dot[2] = {0.0f, 0.0f}, grad_unit = 1.0f;
    // Sums of a product with a state, whose rows' factors they get; then dP's product is added.
    const auto take = [&](int block, const char* dots_with, float near, float far, auto&& add_column) {
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out[block]);
      scale_rows(out[block], near, far);
      add_column(block);
      if constexpr (kGated) add_dots<Element>(dot, out[block], dots_with + block * kPanel, place);
    };
    const auto prepare_to_add = [&](int block) {
      if constexpr (kHalf) scale_rows(out[block], reciprocal_of_power(grad_unit), reciprocal_of_power(grad_unit));
      ptx::fence_registers(out[block]);
      ptx::wgmma_fence();
    };

    // dk
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.grad_state_full, parity);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      start(block);
      issue_product<Element, Major::kK, Major::kK>(out[block], value, call.grad_state() + block * kPanel, false);
      ptx::wgmma_commit();
    }
    release_last();
    {
      const float unit = kHalf ? small.grad_state_unit : 1.0f;
      const float read[2] = {kGated ? gates.read[i0] : 1.0f, kGated ? gates.read[i0 + 8] : 1.0f};
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        take(block, key, unit * read[0], unit * read[1], [&](int of) {
          if constexpr (kNormalized)
            add_outer_product(out[of], read[0], read[1], call.columns().grad_state + 64 * of, call.lane);
        });
        if (block == 0) {
          ptx::mbarrier_wait(&small.pairs_full, parity);
          if constexpr (kHalf) grad_unit = small.grad_unit;
        }
        prepare_to_add(block);
        issue_product<Element, Major::kK, Major::kMN>(out[block], call.pairs(), query + block * kPanel, true);
        ptx::wgmma_commit();
      }
      if constexpr (kGated) store_dots(call.crossings(at.index).keys, dot, place);
    }
    ptx::named_barrier_sync(kGradStateRead, 2 * kComputing);  // all warps have read R, whose place dk takes
    ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
    wait_until_first_done(call, at);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out[block]);
      store(block, grad_unit, call.grad_state() + block * kPanel, p.maps[5]);
      start(block);
      issue_product<Element, Major::kK, Major::kK>(out[block], grad_values, call.state(chunk.slot) + block * kPanel,
                                                   false);
      ptx::wgmma_commit();
    }
    note_stored<kBlocks>(call, at);  // but this dk

    // dq
    dot[0] = dot[1] = 0.0f;
    {
      // E: the gates after the chunk's first token, which R's update has with the scale, and that one.
      const float near = kGated ? gates.write[i0] * gates.entry : call.state_scale(),
                  far = kGated ? gates.write[i0 + 8] * gates.entry : call.state_scale();
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        take(block, query, near, far, [&](int of) {
          if constexpr (kHalf) {
#pragma unroll
            for (int i = 0; i < 32; ++i) out[of][i] *= small.state_units[chunk.slot][kWarps * of + i / 8];
          }
          if constexpr (kNormalized) {
            const float* const x = call.grad_normalizer(at.index);
            add_outer_product(out[of], near * x[i0], far * x[i0 + 8], call.columns().states[chunk.slot] + 64 * of,
                              call.lane);
          }
        });
        if (!Call::kReadsBesideState && block + 1 == kBlocks) arrive_warp(&small.state_empty[chunk.slot], call.lane);
        prepare_to_add(block);
        issue_product<Element, Major::kMN, Major::kMN>(out[block], call.pairs(), key + block * kPanel, true);
        ptx::wgmma_commit();
        if (Call::kReadsBesideState && block + 1 == kBlocks) arrive_warp(&small.state_empty[chunk.slot], call.lane);
      }
      if constexpr (kGated) store_dots(call.crossings(at.index).queries, dot, place);
    }
    if (arrives(call.lane)) {
      ptx::bulk_wait_read<0>();  // dk has left
      ptx::mbarrier_arrive(&small.grad_state_empty);
    }
    __syncwarp();
    ptx::wgmma_wait<1>();
    ptx::fence_registers(out[0]);
    store(0, grad_unit, value, p.maps[4]);  // which this warpgroup alone still read, for dk
    ptx::wgmma_wait<0>();
    ptx::fence_registers(out[1]);
    ptx::named_barrier_sync(3, kComputing);  // all warps have read dP, whose place dq takes
    store(1, grad_unit, call.pairs(), p.maps[4]);
    last_stage = at.index;
    started = true;
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  release_last();
  if (call.lane == 0) ptx::bulk_wait<0>();
  note_stored<0>(call, at);
}

}  // namespace lethe::matrix_state
