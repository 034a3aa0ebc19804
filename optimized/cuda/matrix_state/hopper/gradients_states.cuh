#pragma once
// The gradients' states: S of each chunk, computed again from the one before its segment, and R, the gradient of the state after the chunk.

#include "optimized/cuda/matrix_state/hopper/gradients_shared.cuh"

namespace lethe::matrix_state {

/// A warpgroup: S of every chunk, times the scale where there are no gates.
template <typename Element, bool kGated>
__device__ __forceinline__ void rebuild_states(const Gradients<Element, kGated>& call) {
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  State<kGated> state(1.0f);
  ptx::RingPosition at;
  for (int s = call.piece.begin; s < call.piece.end; ++s) {
    const int count = call.order.count(s), in_time = call.order.segments - 1 - s;
    if (in_time == 0)
      state.load(p.initial ? p.initial + call.head * p.rows * p.columns : nullptr, p.rows, p.columns, place);
    else state.load_segment(p.states + (call.head * (call.order.segments - 1) + in_time - 1) * kStateFloats, place);
    for (int m = 0; m < count; ++m) {
      const int slot = call.slot_of(s, m);
      float now[32];
#pragma unroll
      for (int i = 0; i < 32; ++i) now[i] = kGated ? state.value(i) : state.value(i) * p.scale;
      float unit = 1.0f;
      if constexpr (Gradients<Element, kGated>::kHalf) unit = power_of_two_below(largest_of_warp(largest_of(now)));
      uint32_t packed[16];
      pack_sums<Element>(packed, now, reciprocal_of_power(unit));
      ptx::mbarrier_wait(&small.state_empty[slot], call.parity_of(s, slot) ^ 1);
      if (call.lane == 0) small.state_units[slot][call.warp] = unit;
      store_packed(ptx::shared_address(call.state(slot)), packed, place);
      ptx::fence_async_shared();
      arrive_warp(&small.state_full[slot], call.lane);
      if (m + 1 == count) break;
      ptx::mbarrier_wait(&small.rebuild_full[at.index], at.parity);
      const ChunkGates& gates = call.rebuild_gates(at.index);
      const char* const tiles = call.rebuild_stage(at.index);
      if constexpr (kGated) state.forget(gates.total);
      add_to_state<Element, kGated>(state.sum, tiles, tiles + kPanel, gates.write, place);
      arrive_warp(&small.rebuild_empty[at.index], call.lane);
      at.advance(GradientsShared::kRebuildStages);
    }
  }
}

/// A warp's share of ⟨S, R⟩, of its rows of S in 16 bits.
template <typename Element>
__device__ __forceinline__ float product_of_states(const float (&grad)[32], uint32_t state, Place at) {
  float product = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4];
    load_left(a, state, k, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(a[i]);
      product += x.x * grad[8 * k + 2 * i] + x.y * grad[8 * k + 2 * i + 1];
    }
  }
  for (int step = 1; step < 32; step *= 2) product += __shfl_xor_sync(kAllLanes, product, step);
  return product;
}

/// A warpgroup: R of every chunk, the gradient of the initial state, and what ⟨S, R⟩ gives to d log f.
template <typename Element, bool kGated>
__device__ __forceinline__ void sweep_grad_states(const Gradients<Element, kGated>& call) {
  using Shared = GradientsShared;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  State<kGated> state(p.scale);
  if (call.piece.begin == 0)
    state.load(p.grad_last ? p.grad_last + call.head * p.rows * p.columns : nullptr, p.rows, p.columns, place);
  else state.load_segment(p.grad_states + (call.head * p.handed + call.piece.begin - 1) * kStateFloats, place);
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto& chunk) {
    if (chunk.begins) state.join();
    float now[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) now[i] = state.value(i);
    ptx::mbarrier_wait(&small.grad_state_empty, parity ^ 1);
    float inverse = 1.0f;
    if constexpr (Gradients<Element, kGated>::kHalf) {
      const float x = largest_of_warp(largest_of(now));
      if (call.lane == 0) small.largest[call.warp] = x;
      ptx::named_barrier_sync(1, kComputing);
      const float* all = small.largest;
      const float unit = power_of_two_below(fmaxf(fmaxf(all[0], all[1]), fmaxf(all[2], all[3])));
      inverse = reciprocal_of_power(unit);
      if (call.warp == 0 && call.lane == 0) small.grad_state_unit = unit;
    }
    uint32_t packed[16];
    pack_sums<Element>(packed, now, inverse);
    store_packed(ptx::shared_address(call.grad_state()), packed, place);
    ptx::fence_async_shared();
    arrive_warp(&small.grad_state_full, call.lane);

    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    const ChunkGates& gates = call.gates(at.index);
    const char* const tiles = call.stage(at.index);
    if constexpr (kGated) {
      ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
      const float product = product_of_states<Element>(now, ptx::shared_address(call.state(chunk.slot)), place);
      if (call.lane == 0)
        call.crossings(at.index).states[call.warp] =
            product * gates.total * gates.entry * small.state_units[chunk.slot][call.warp];
      arrive_warp(&small.state_empty[chunk.slot], call.lane);
      state.forget(gates.total);
    }
    add_to_state<Element, kGated>(state.sum, tiles + Shared::kQuery, tiles + Shared::kGradValues, gates.write, place);
    arrive_warp(&small.empty[at.index], call.lane);
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (!p.grad_initial || call.piece.end < call.order.segments) return;
  const float factor = !kGated ? 1.0f : call.gate()[0] < -104.0f ? 0.0f : expf(call.gate()[0]);
  state.store(p.grad_initial + call.head * p.rows * p.columns, factor, p.rows, p.columns, place);
}

}  // namespace lethe::matrix_state
