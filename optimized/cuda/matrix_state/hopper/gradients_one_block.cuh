#pragma once
// The gradients of a state of at most 64 rows: one warpgroup computes P and dP, another dq, dk and dv of the chunk before. These three are stored
// from shared memory that no product reads, so that operands are free as soon as they are read; but for dk of a normalised call without
// left states, which leaves from dP's place.

#include "optimized/cuda/matrix_state/hopper/gradients_pairs.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_tiles.cuh"

namespace lethe::matrix_state {

/// A warpgroup: P and dP of every chunk, in 16 bits to shared memory.
template <typename Call>
__device__ __forceinline__ void sweep_pairs(const Call& call) {
  using Element = typename Call::Element;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  [[maybe_unused]] PairMasks masks;
  if constexpr (Call::kOneWay) masks = PairMasks::of(place);
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto&) {
    float scores[32], grads[32];
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    compute_pairs(
        call, at.index, scores, grads, [] {}, masks);
    arrive_warp(&small.empty[at.index], call.lane);
    ptx::mbarrier_wait(&small.pairs_empty, parity ^ 1);
    store_pairs(call, scores, grads, place);
    at.advance(Call::Shared::kStages);
    parity ^= 1;
  });
}

/// A warpgroup: dq, dk and dv of every chunk.
template <typename Call>
__device__ __forceinline__ void sweep_outputs(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  constexpr bool kGated = Call::kGated, kHalf = Call::kHalf, kNormalized = Call::kNormalized;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int i0 = 16 * call.warp + call.lane / 4;
  constexpr bool kKeyInPairs = Shared::kKeyOut == Shared::kPairs;
  const auto start = [](float(&sum)[32]) {
    ptx::undefined(sum);
    ptx::fence_registers(sum);
  };
  // The n-th of a chunk's results, dq, dk and dv, leaves from a place in turn, which the store before the last one has left; of a normalised call dk
  // from dP's.
  const auto store = [&](auto result, uint32_t chunk_parity, const float(&sum)[32], float unit, int64_t first) {
    constexpr int kResult = decltype(result)::value, kYounger = kKeyInPairs && kResult == 0 ? 0 : 1;
    const int tile = kKeyInPairs                    ? (kResult == 1 ? Shared::kPairs : Shared::kOut)
                     : (chunk_parity + kResult) % 2 ? Shared::kKeyOut
                                                    : Shared::kOut;
    uint32_t packed[16];
    pack_sums<Element>(packed, sum, unit);
    if (call.lane == 0) ptx::bulk_wait_read<kYounger>();
    __syncwarp();
    store_rows_by_map(call.memory + tile, packed, p.maps[4 + kResult], kResult == 2 ? call.column() : 0, first, call.b,
                      call.h, place, kResult < 2 && call.adds());
  };
  constexpr std::integral_constant<int, 0> kQueries{};
  constexpr std::integral_constant<int, 1> kKeys{};
  constexpr std::integral_constant<int, 2> kValues{};
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto& chunk) {
    const auto& gates = call.gates(at.index);
    const char *const tiles = call.stage(at.index), *const query = tiles + Shared::kQuery,
                      *const key = tiles + Shared::kKey, *const value = tiles + Shared::kValue,
                      *const grad_values = tiles + Shared::kGradValues;
    float out[32], out_key[32];
    const auto issue_query_of_state = [&] {
      issue_product<Element, Major::kK, Major::kK>(out, grad_values, call.state(chunk.slot), false);
    };
    const auto issue_query_of_pairs = [&] {
      issue_product<Element, Major::kMN, Major::kMN>(out, call.pairs(), key, true);
    };
    const auto issue_value_of_state = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out, key, call.grad_state(), false);
    };
    const auto issue_value_of_pairs = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out, call.scores(), grad_values, true);
    };
    const auto issue_key_of_state = [&] {
      issue_product<Element, Major::kK, Major::kK>(out_key, value, call.grad_state(), false);
    };
    const auto issue_key_of_pairs = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out_key, call.pairs(), query, true);
    };
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
    if constexpr (!kGated && !kHalf && !kNormalized) {
      // Nothing is scaled or added between a product with a state and that with pairs: both are one batch, which runs under the stores of the one
      // before.
      ptx::mbarrier_wait(&small.pairs_full, parity);
      start(out);
      ptx::wgmma_fence();
      issue_query_of_state();
      issue_query_of_pairs();
      ptx::wgmma_commit();
      ptx::mbarrier_wait(&small.grad_state_full, parity);
      start(out_key);
      ptx::wgmma_fence();
      issue_key_of_state();
      issue_key_of_pairs();
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out);
      arrive_warp(&small.state_empty[chunk.slot], call.lane);
      store(kQueries, parity, out, call.result_scale(), chunk.first);
      start(out);
      ptx::wgmma_fence();
      issue_value_of_state();
      issue_value_of_pairs();
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out_key);
      store(kKeys, parity, out_key, call.result_scale(), chunk.first);
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      arrive_warp(&small.grad_state_empty, call.lane);
      arrive_warp(&small.pairs_empty, call.lane);
      arrive_warp(&small.empty[at.index], call.lane);
      store(kValues, parity, out, call.result_scale(), chunk.first);
    } else {
      // One product runs while the sums of the one before are scaled and their dot products computed.
      start(out);
      ptx::wgmma_fence();
      issue_query_of_state();
      ptx::wgmma_commit();
      ptx::mbarrier_wait(&small.grad_state_full, parity);
      start(out_key);
      ptx::wgmma_fence();
      issue_key_of_state();
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out);
      if constexpr (kHalf) {
#pragma unroll
        for (int i = 0; i < 32; ++i) out[i] *= small.state_units[chunk.slot][i / 8];
      }
      if constexpr (kNormalized) {
        const float* const x = call.grad_normalizer(at.index);
        add_outer_product(out, x[i0], x[i0 + 8], call.columns().states[chunk.slot], call.lane);
      }
      if constexpr (!Call::kReadsBesideState) arrive_warp(&small.state_empty[chunk.slot], call.lane);
      // E: the gates after the chunk's first token, which R's update has with the scale, and that one.
      const auto factor = [&](int row) { return kGated ? gates.write[row] * gates.entry : call.state_scale(); };
      const float read_state[2] = {factor(i0), factor(i0 + 8)};
      float dot[2] = {0.0f, 0.0f};
      if constexpr (kGated) add_dots<Element>(dot, out, query, place);
      ptx::mbarrier_wait(&small.pairs_full, parity);
      float score_unit = 1.0f, grad_unit = 1.0f;
      if constexpr (kHalf) {
        score_unit = small.score_unit;
        grad_unit = small.grad_unit;
      }
      const float inverse = reciprocal_of_power(grad_unit);
      scale_rows(out, read_state[0] * inverse, read_state[1] * inverse);
      ptx::fence_registers(out);
      ptx::wgmma_fence();
      issue_query_of_pairs();
      ptx::wgmma_commit();
      if constexpr (Call::kReadsBesideState) arrive_warp(&small.state_empty[chunk.slot], call.lane);
      if constexpr (kGated)
        store_dots(call.crossings(at.index).queries, {read_state[0] * dot[0], read_state[1] * dot[1]}, place);

      ptx::wgmma_wait<1>();
      ptx::fence_registers(out_key);
      const float unit = kHalf ? small.grad_state_unit : 1.0f;
      const float read[2] = {kGated ? gates.read[i0] : 1.0f, kGated ? gates.read[i0 + 8] : 1.0f}, near = unit * read[0],
                  far = unit * read[1];
      // The column has no unit: where R is 0 and the column isn't, its reciprocal would overflow.
      const float key_unit = kNormalized ? 1.0f : unit;
      if constexpr (kNormalized) {
        if constexpr (kHalf) {
#pragma unroll
          for (int i = 0; i < 32; ++i) out_key[i] *= unit;
        }
        add_outer_product(out_key, 1.0f, 1.0f, call.columns().grad_state, call.lane);
      }
      dot[0] = dot[1] = 0.0f;
      if constexpr (kGated) add_dots<Element>(dot, out_key, key, place);
      const float read_grad_state[2] = {key_unit * read[0], key_unit * read[1]};
      scale_rows(out_key, read_grad_state[0] * inverse, read_grad_state[1] * inverse);
      ptx::fence_registers(out_key);
      ptx::wgmma_fence();
      issue_key_of_pairs();
      ptx::wgmma_commit();
      if constexpr (kGated)
        store_dots(call.crossings(at.index).keys, {read_grad_state[0] * dot[0], read_grad_state[1] * dot[1]}, place);

      ptx::wgmma_wait<1>();
      ptx::fence_registers(out);
      wait_until_first_done(call, at);
      store(kQueries, parity, out, grad_unit, chunk.first);
      note_stored<2>(call, at);  // but the last chunk's dv and this dq
      start(out);
      ptx::wgmma_fence();
      issue_value_of_state();
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out_key);
      if constexpr (kKeyInPairs) ptx::named_barrier_sync(3, kComputing);  // all warps have read dP
      store(kKeys, parity, out_key, grad_unit, chunk.first);
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      arrive_warp(&small.grad_state_empty, call.lane);
      scale_rows(out, near * reciprocal_of_power(score_unit), far * reciprocal_of_power(score_unit));
      ptx::fence_registers(out);
      ptx::wgmma_fence();
      issue_value_of_pairs();
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      if constexpr (!kKeyInPairs) arrive_warp(&small.pairs_empty, call.lane);
      arrive_warp(&small.empty[at.index], call.lane);
      store(kValues, parity, out, score_unit, chunk.first);
    }
    if constexpr (kKeyInPairs) {
      if (arrives(call.lane)) {
        ptx::bulk_wait_read<1>();  // dk has left
        ptx::mbarrier_arrive(&small.pairs_empty);
      }
      __syncwarp();
    }
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (call.lane == 0) ptx::bulk_wait<0>();
  note_stored<0>(call, at);
}

}  // namespace lethe::matrix_state
