#pragma once
// The gradients of a state of at most 64 rows: one warpgroup computes P and dP, another dq, dk and dv of the chunk before. These three are stored from shared
// memory that no product reads, so that operands are free as soon as they are read; but for dk of a normalised call.

#include "optimized/cuda/matrix_state/hopper/gradients_pairs.cuh"

namespace lethe::matrix_state {

/// A warpgroup: P and dP of every chunk, in 16 bits to shared memory.
template <typename Call>
__device__ __forceinline__ void sweep_pairs(const Call& call) {
  using Element = typename Call::Element;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto&) {
    float scores[32], grads[32];
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    compute_pairs(call, at.index, scores, grads, [] {});
    arrive_warp(&small.empty[at.index], call.lane);
    ptx::mbarrier_wait(&small.pairs_empty, parity ^ 1);
    const PairUnits units = pair_units(call, scores, grads);
    uint32_t packed[16];
    pack_sums<Element>(packed, grads, reciprocal_of_power(units.grad));
    store_packed(ptx::shared_address(call.pairs()), packed, place);
    pack_sums<Element>(packed, scores, reciprocal_of_power(units.score));
    store_packed(ptx::shared_address(call.scores()), packed, place);
    ptx::fence_async_shared();
    arrive_warp(&small.pairs_full, call.lane);
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
  constexpr bool kGated = Call::kGated, kHalf = Call::kHalf, kScaled = kGated || kHalf;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int i0 = 16 * call.warp + call.lane / 4;
  constexpr bool kKeyInState = Shared::kKeyOut == Shared::kGradState;
  const auto start = [](float(&sum)[32]) {
    ptx::undefined(sum);
    ptx::fence_registers(sum);
  };
  // A result's rows leave from a place; all stores but so many youngest ones are waited for, those from the same place among them.
  const auto store = [&](auto youngest, const float(&sum)[32], float unit, int tile, const CUtensorMap& map,
                         int64_t first) {
    uint32_t packed[16];
    pack_sums<Element>(packed, sum, unit);
    if (call.lane == 0) ptx::bulk_wait_read<decltype(youngest)::value>();
    __syncwarp();
    store_rows_by_map(call.memory + tile, packed, map, 0, first, call.b, call.h, place);
  };
  ptx::RingPosition at;
  uint32_t parity = 0;
  bool started = false;
  call.each_chunk([&](const auto& chunk) {
    const ChunkGates& gates = call.gates(at.index);
    const char *const tiles = call.stage(at.index), *const query = tiles + Shared::kQuery,
                      *const key = tiles + Shared::kKey, *const value = tiles + Shared::kValue,
                      *const grad_values = tiles + Shared::kGradValues;
    float score_unit = 1.0f, grad_unit = 1.0f;
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
    // What comes of S is scaled into other registers, so that its dot products run under the products with pairs.
    {
      float out[32];
      // Where nothing is scaled or added between the products with S and with pairs, they are one batch.
      constexpr bool kTogether = !kScaled && !Call::kNormalized;
      const auto issue_of_state = [&](float(&sum)[32]) {
        start(sum);
        ptx::wgmma_fence();
        issue_product<Element, Major::kK, Major::kK>(sum, grad_values, call.state(chunk.slot), false);
      };
      const auto issue_pairs = [&] {
        issue_product<Element, Major::kMN, Major::kMN>(out, call.pairs(), key, true);
        ptx::wgmma_commit();
      };
      const auto release_last_key = [&] {
        if (kKeyInState && started && arrives(call.lane)) {
          ptx::bulk_wait_read<0>();  // the previous chunk's dk has left
          ptx::mbarrier_arrive(&small.grad_state_empty);
        }
        __syncwarp();
        started = true;
      };
      if constexpr (kTogether) {
        ptx::mbarrier_wait(&small.pairs_full, parity);
        issue_of_state(out);
        issue_pairs();
        release_last_key();
        ptx::wgmma_wait<0>();
        arrive_warp(&small.state_empty[chunk.slot], call.lane);
      } else {
        float of_state[32];
        issue_of_state(of_state);
        ptx::wgmma_commit();
        release_last_key();
        ptx::wgmma_wait<0>();
        ptx::fence_registers(of_state);
        if constexpr (kHalf) {
#pragma unroll
          for (int i = 0; i < 32; ++i) of_state[i] *= small.state_units[chunk.slot][i / 8];
        }
        if constexpr (Call::kNormalized) {
          const float* const x = call.grad_normalizer(at.index);
          add_outer_product(of_state, x[i0], x[i0 + 8], call.columns().states[chunk.slot], call.lane);
        }
        arrive_warp(&small.state_empty[chunk.slot], call.lane);
        ptx::mbarrier_wait(&small.pairs_full, parity);
        if constexpr (kHalf) {
          score_unit = small.score_unit;
          grad_unit = small.grad_unit;
        }
        // E: the gates after the chunk's first token, which R's update has with the scale, and that one.
        const auto factor = [&](int row) { return kGated ? gates.write[row] * gates.entry : 1.0f; };
        const float near = factor(i0), far = factor(i0 + 8);
        scale_rows_to(out, of_state, near * reciprocal_of_power(grad_unit), far * reciprocal_of_power(grad_unit));
        ptx::fence_registers(out);
        ptx::wgmma_fence();
        issue_pairs();
        if constexpr (kGated) {
          float dot[2] = {0.0f, 0.0f};
          add_dots<Element>(dot, of_state, query, place);
          store_dots(call.crossings(at.index).queries, {near * dot[0], far * dot[1]}, place);
        }
        ptx::wgmma_wait<0>();
      }
      ptx::fence_registers(out);
      store(std::integral_constant<int, 0>{}, out, grad_unit, Shared::kOut, p.maps[4], chunk.first);
    }
    float out_value[32], out_key[32];
    const auto issue_value_of_state = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out_value, key, call.grad_state(), false);
    };
    const auto issue_value_of_pairs = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out_value, call.scores(), grad_values, true);
    };
    const auto issue_key_of_state = [&](float(&sum)[32]) {
      issue_product<Element, Major::kK, Major::kK>(sum, value, call.grad_state(), false);
    };
    const auto issue_key_of_pairs = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out_key, call.pairs(), query, true);
    };
    const auto store_key = [&] {
      if constexpr (kKeyInState) ptx::named_barrier_sync(3, kComputing);  // all warps have read R
      store(std::integral_constant<int, 2>{}, out_key, grad_unit, Shared::kKeyOut, p.maps[5], chunk.first);
    };
    const auto release_operands = [&] {
      arrive_warp(&small.pairs_empty, call.lane);
      arrive_warp(&small.empty[at.index], call.lane);
    };
    ptx::mbarrier_wait(&small.grad_state_full, parity);
    if constexpr (kScaled) {
      float of_state[32];
      start(of_state);
      ptx::wgmma_fence();
      issue_key_of_state(of_state);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(of_state);
      const float unit = kHalf ? small.grad_state_unit : 1.0f;
      float read = kGated ? gates.read[i0] : 1.0f, read_far = kGated ? gates.read[i0 + 8] : 1.0f;
      const float near = unit * read, far = unit * read_far;
      if constexpr (
          Call::
              kNormalized) {  // the column has no unit: where R is 0 and the column isn't, its reciprocal would overflow
        if constexpr (kHalf) {
#pragma unroll
          for (int i = 0; i < 32; ++i) of_state[i] *= unit;
        }
        add_outer_product(of_state, 1.0f, 1.0f, call.columns().grad_state, call.lane);
      } else {
        read = near;
        read_far = far;
      }
      scale_rows_to(out_key, of_state, read * reciprocal_of_power(grad_unit),
                    read_far * reciprocal_of_power(grad_unit));
      ptx::fence_registers(out_key);
      ptx::wgmma_fence();
      issue_key_of_pairs();
      ptx::wgmma_commit();
      if constexpr (kGated) {
        float dot[2] = {0.0f, 0.0f};
        add_dots<Element>(dot, of_state, key, place);
        store_dots(call.crossings(at.index).keys, {read * dot[0], read_far * dot[1]}, place);
      }
      start(out_value);
      ptx::wgmma_fence();
      issue_value_of_state();
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out_key);
      if constexpr (!kKeyInState) store_key();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out_value);
      if constexpr (!kKeyInState) arrive_warp(&small.grad_state_empty, call.lane);
      scale_rows(out_value, near * reciprocal_of_power(score_unit), far * reciprocal_of_power(score_unit));
      ptx::fence_registers(out_value);
      ptx::wgmma_fence();
      issue_value_of_pairs();
      ptx::wgmma_commit();
      if constexpr (kKeyInState) store_key();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out_value);
      release_operands();
    } else {
      start(out_value);
      start(out_key);
      ptx::wgmma_fence();
      issue_value_of_state();
      issue_value_of_pairs();
      issue_key_of_state(out_key);
      issue_key_of_pairs();
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out_value);
      ptx::fence_registers(out_key);
      if constexpr (Call::kNormalized) add_outer_product(out_key, 1.0f, 1.0f, call.columns().grad_state, call.lane);
      if constexpr (!kKeyInState) arrive_warp(&small.grad_state_empty, call.lane);
      release_operands();
      store_key();
    }
    store(std::integral_constant<int, 1>{}, out_value, score_unit, Shared::kOut, p.maps[6], chunk.first);
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (call.lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state
