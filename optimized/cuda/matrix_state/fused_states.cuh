#pragma once
// The state before each chunk, rounded to 16 bits: the first of the two kernels of the fused gradients (fused.hpp).

#include <type_traits>

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/fragments.cuh"
#include "optimized/cuda/matrix_state/fused.hpp"
#include "optimized/cuda/matrix_state/segments.cuh"
#include "optimized/cuda/matrix_state/tile_ring.cuh"

namespace lethe::matrix_state {

struct FusedStatesShared {
  using Ring = TileRing<2 * kPanel>;
  static constexpr int kKey = 0, kValue = kPanel;
  static constexpr int kGates = Ring::kBytes, kFull = kGates + kSegmentChunks * sizeof(ChunkGates);
  static constexpr int kBytes = kFull + Ring::kStages * sizeof(uint64_t);
};

template <typename Element, bool kGated>
__global__ void __launch_bounds__(kComputing, 4) fused_states(const __grid_constant__ FusedArguments p) {
  using Shared = FusedStatesShared;
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  ChunkGates* const all_gates = reinterpret_cast<ChunkGates*>(memory + Shared::kGates);
  const Shared::Ring ring{memory, reinterpret_cast<uint64_t*>(memory + Shared::kFull)};

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place place{warp, lane};
  const int64_t all_heads = static_cast<int64_t>(p.batch) * p.heads, head = blockIdx.x % all_heads, b = head / p.heads,
                h = head % p.heads, chunks = (p.length + kChunk - 1) / kChunk;
  const Segment segment(p.length, false, all_heads, 1);
  const float* gate = kGated ? p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride : nullptr;

  const int summed = segment.last ? 0 : segment.count, steps = summed + segment.count - 1;
  const auto copy = [&](int step) {
    if (step < steps) {
      char* const to = ring.stage(step);
      const int64_t first = static_cast<int64_t>(segment.chunk(step < summed ? step : step - summed)) * kChunk;
      ring.expect(step, 2 * kPanel);
      copy_tile<1>(to + Shared::kKey, p.maps[1], p.key, ring.barrier(step), 0, p.rows, first, p.length, b, h);
      copy_tile<1>(to + Shared::kValue, p.maps[2], p.value, ring.barrier(step), 0, p.columns, first, p.length, b, h);
    }
    ring.commit();
  };
  ring.begin();
  copy(0);
  if constexpr (kGated) {
    for (int n = warp; n < segment.count; n += kWarps)
      prepare_gates(
          all_gates[n],
          load_gates(gate, p.gate.token_stride, static_cast<int64_t>(segment.chunk(n)) * kChunk, p.length, false, lane),
          1.0f, 1.0f, false, lane);
  }

  float state[8][4] = {};  // row 16·warp + g + 8·(e / 2), column 8n + 2t + e % 2
  const auto update = [&](int step, int n) {
    const uint32_t stage = ptx::shared_address(ring.stage(step));
    if constexpr (kGated) {
      const float total = all_gates[n].total;
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) state[i][e] *= total;
    }
    ring.wait(step);
    add_outer_products<Element, kGated>(state, stage + Shared::kKey, stage + Shared::kValue, all_gates[n], 1.0f, place);
  };
  float decay = 1.0f;
  for (int step = 0; step < summed; ++step) {
    ring.begin_step();
    copy(step + 1);
    if constexpr (kGated) decay *= all_gates[step].total;
    update(step, step);
  }
  const HandedStates<8> handed(p.before, p.length, segment, head);
  float before[8][4];
  if (segment.first) load_state(before, p.initial, head, p.rows, p.columns);
  else handed.receive(before);
  if (!segment.last) handed.hand_on(before, state, decay);
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) state[i][e] = before[i][e];

  for (int n = 0; n < segment.count; ++n) {
    const int64_t chunk = head * chunks + segment.chunk(n);
    float inverse = 1.0f;
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(state[i][e]));
      const float unit = power_of_two_below(__uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(x))));
      inverse = reciprocal_of_power(unit);
      if (lane == 0) p.state_units[chunk * kWarps + warp] = unit;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float(&near)[4] = state[2 * k], (&far)[4] = state[2 * k + 1];
      p.chunk_states[(chunk * 4 + k) * kComputing + threadIdx.x] = {
          pack<Element>(near[0] * inverse, near[1] * inverse), pack<Element>(near[2] * inverse, near[3] * inverse),
          pack<Element>(far[0] * inverse, far[1] * inverse), pack<Element>(far[2] * inverse, far[3] * inverse)};
    }
    if (n + 1 == segment.count) break;
    ring.begin_step();
    copy(summed + n + 1);
    update(summed + n, n);
  }
  wait_for_previous_kernel();
}

}  // namespace lethe::matrix_state
