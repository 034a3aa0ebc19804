#pragma once
// The sums of R's segments where the gradients' kernel divides by z·q (gradients_divided.cuh), for heads in pieces: with its bits.

#include "optimized/cuda/matrix_state/hopper/gradients_divided.cuh"
#include "optimized/cuda/matrix_state/hopper/segments.cuh"

namespace lethe::matrix_state {

/// What a sum needs besides query and dO, of `sums` in reverse: for y of each chunk.
struct DividedSumsArguments {
  SegmentArguments sums;
  CUtensorMap maps[2];  ///< of key and value
  Operand key, value;
  KeptStates kept;
  const DividedGates* gates;  ///< [B·H, chunks]
};

struct DividedSumsShared {
  static constexpr int kStages = 2, kThreads = kComputing;
  static constexpr int kQuery = 0, kKey = kPanel, kValue = 2 * kPanel, kGradValues = 3 * kPanel, kState = 4 * kPanel,
                       kStage = 5 * kPanel;
  struct Small {
    DividedGates gates[kStages];
    float largest[kWarps];  ///< of y
    struct Column {
      SplitVector values;
      float unit;
    } column;
    char beyond[kBeyondSplitVector];
    uint64_t full[kStages];
  };
  static constexpr int kSmall = kStages * kStage, kBytes = kSmall + static_cast<int>(sizeof(Small));
  static_assert(2 * (kBytes + 1024) <= 228 * 1024);
};

/// A CTA: a segment's own sum, and that of the column apart.
template <typename Element>
__global__ void __launch_bounds__(DividedSumsShared::kThreads, 2)
    divided_segment_sums(const __grid_constant__ DividedSumsArguments a) {
  using Shared = DividedSumsShared;
  extern __shared__ __align__(1024) char memory[];
  const SegmentArguments& p = a.sums;
  auto& small = *reinterpret_cast<Shared::Small*>(memory + Shared::kSmall);
  let_next_kernel_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place place{warp, lane};
  const int64_t own = blockIdx.x % p.head_count, head = p.first_head + own, b = head / p.heads, h = head % p.heads;
  const SegmentOrder order(p.length, true, kChunksOfSegment<1>);
  const int index = static_cast<int>(blockIdx.x) / p.head_count, count = order.count(index);
  const auto copy = [&](int n) {
    if (threadIdx.x > 0 || n >= count) return;
    const int64_t chunk = order.chunk(index, n), first = chunk * kChunk;
    char* const to = memory + n % Shared::kStages * Shared::kStage;
    uint64_t* const full = &small.full[n % Shared::kStages];
    ptx::mbarrier_arrive_expect(full, Shared::kStage + sizeof(DividedGates));
    ptx::load_run(&small.gates[n % Shared::kStages], &a.gates[head * order.chunks + chunk], sizeof(DividedGates), full);
    load_tile_of<1>(to + Shared::kQuery, p.maps[0], p.key, full, 0, first, b, h);
    load_tile_of<1>(to + Shared::kKey, a.maps[0], a.key, full, 0, first, b, h);
    load_tile_of<1>(to + Shared::kValue, a.maps[1], a.value, full, 0, first, b, h);
    load_tile_of<1>(to + Shared::kGradValues, p.maps[1], p.value, full, 0, first, b, h);
    ptx::load_tile(to + Shared::kState, &a.kept.states, full, 0, static_cast<int>(h), static_cast<int>(first),
                   static_cast<int>(b));
  };
  if (threadIdx.x == 0) {
    for (uint64_t& full : small.full) ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernel();
  for (int n = 0; n < Shared::kStages - 1; ++n) copy(n);
  State<true> state(p.scale);
  state.clear_sum();
  StateColumn last;
  for (int n = 0; n < count; ++n) {
    __syncthreads();  // all warps are done with the chunk before, whose stage is filled again
    copy(n + Shared::kStages - 1);
    const auto unit = [&](int i) {
      return load_global(a.kept.units + head * a.kept.stride + order.chunk(index, n) * kWarps + i);
    };
    ptx::mbarrier_wait(&small.full[n % Shared::kStages], n / Shared::kStages & 1);
    const char* const stage = memory + n % Shared::kStages * Shared::kStage;
    const DividedGates& gates = small.gates[n % Shared::kStages];
    {
      float scores[32], grads[32], weights[32];
      const DividedTiles tiles{stage + Shared::kQuery, stage + Shared::kKey, stage + Shared::kValue,
                               stage + Shared::kGradValues, stage + Shared::kState};
      const DividedPairs pairs(gates, place, DividedPairs::causal(place));
      QueryShares of =
          multiply_pairs<Element>(scores, grads, tiles, gates, unit, place, [&] { pairs.take_weights(weights); });
      pairs.weigh(scores, grads, weights, of.sums);
      const float y[2] = {-quad_sum(of.sums[0]), -quad_sum(of.sums[1])};
      publish_queries<Element>(
          small.column, y, small.largest, place, [] { __syncthreads(); }, [](auto&, int, int, float) {});
    }
    __syncthreads();
    add_divided<Element>(state, last, stage + Shared::kQuery, stage + Shared::kGradValues, gates, small.column, place);
  }
  const int64_t at = own * p.segments + index;
  store_block_of_segment(p.states, state.sum, at, 0, 1, place);
  each_of_column(place, [&](int half, int row) { p.vectors[at * 64 + row] = last.sum[half]; });
  if (threadIdx.x == 0) p.decays[at] = state.decay;
}

}  // namespace lethe::matrix_state
