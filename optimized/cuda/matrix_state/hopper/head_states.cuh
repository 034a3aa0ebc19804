#pragma once
// The states after a head's segments by a CTA that sweeps the head, with the bits of segment_sums and join_segments (segments.cuh), whose states go
// to memory and back once more: where heads suffice for all multiprocessors, or where those that are left sweep heads' beginnings beside it.

#include "optimized/cuda/matrix_state/hopper/segments.cuh"

namespace lethe::matrix_state {

template <bool kGated, int kBlocks, bool kNormalized>
struct HeadStatesShared {
  static constexpr int kStages = kBlocks == 1 ? 5 : 4, kStage = (kBlocks + 1) * kPanel;
  /// Warps that prepare the next segment's gates, after those of the state.
  static constexpr int kGateWarps = kGated ? 4 / kBlocks : 0, kThreads = kBlocks * kComputing + 32 * kGateWarps;
  static constexpr int kGates = kStages * kStage, kEach = kChunksOfSegment<kBlocks>,
                       kOnes =
                           (kGates + (kGated ? 2 : 0) * kEach * static_cast<int>(sizeof(ChunkGates)) + 15) / 16 * 16,
                       kFull = kOnes + (kNormalized ? static_cast<int>(sizeof(SplitVector)) + kBeyondSplitVector : 0);
  /// After the stages' barriers those of two segments' gates.
  static constexpr int kBytes = kFull + (kStages + (kGated ? 4 : 0)) * static_cast<int>(sizeof(uint64_t));
  static_assert(kFull % 8 == 0 && 2 * (kBytes + 1024) <= 228 * 1024);
};

/// A CTA: a tile of columns of a head's states after its first segments, 64 rows a warpgroup. By time, of a normalised call with z; or, kGradient and
/// not normalised, in reverse R with the bits of gradients_states.cuh for two blocks, where it is one sum.
template <typename Element, bool kGated, int kBlocks, bool kGradient, bool kNormalized>
__global__ void __launch_bounds__(HeadStatesShared<kGated, kBlocks, kNormalized>::kThreads, 2)
    head_states(const __grid_constant__ SegmentArguments p) {
  static_assert(!kGradient || !kNormalized);
  using Shared = HeadStatesShared<kGated, kBlocks, kNormalized>;
  constexpr int kAllWarps = kBlocks * kWarps, kEach = Shared::kEach;
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  const auto gates_of_segment = [&](int s) {
    return reinterpret_cast<ChunkGates*>(memory + Shared::kGates) + (kGated ? s % 2 * kEach : 0);
  };
  uint64_t *const full = reinterpret_cast<uint64_t*>(memory + Shared::kFull),
                  *const gates_full = full + Shared::kStages, *const gates_empty = gates_full + 2;
  const int warp = ptx::in_uniform_register(threadIdx.x / 32), lane = threadIdx.x % 32, block = warp / kWarps;
  const Place place{warp % kWarps, lane};
  const int tile = blockIdx.x % p.tiles;
  const int64_t own = blockIdx.x / p.tiles, head = p.first_head + own, b = head / p.heads, h = head % p.heads;
  const SegmentOrder order(p.length, kGradient, kEach);
  const auto first_of = [&](int s, int n) { return int64_t{kChunk} * order.chunk(s, n); };

  // Only the last segment by time may be shorter: of R the first one, by time none of these.
  const int earliest = kGradient ? order.begin(p.segments - 1) : 0,
            chunks = kGradient ? order.chunks - earliest : p.segments * kEach;
  const auto copy = [&](int n) {
    if (threadIdx.x > 0 || n >= chunks) return;
    const int64_t first = int64_t{kChunk} * (kGradient ? order.chunks - 1 - n : n);
    char* const to = memory + n % Shared::kStages * Shared::kStage;
    uint64_t* const barrier = &full[n % Shared::kStages];
    ptx::mbarrier_arrive_expect(barrier, Shared::kStage);
    load_tile_of<kBlocks>(to, p.maps[0], p.key, barrier, 0, first, b, h);
    load_tile_of<1>(to + kBlocks * kPanel, p.maps[1], p.value, barrier, 64 * tile, first, b, h);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared::kStages; ++i) ptx::mbarrier_init(&full[i], 1);
    for (int i = 0; kGated && i < 2; ++i) {
      ptx::mbarrier_init(&gates_full[i], Shared::kGateWarps * kArrivalsOfAWarp);
      ptx::mbarrier_init(&gates_empty[i], kAllWarps * kArrivalsOfAWarp);
    }
    ptx::mbarrier_init_fence();
  }
  [[maybe_unused]] SplitVector& ones = *reinterpret_cast<SplitVector*>(memory + Shared::kOnes);
  if constexpr (kNormalized) {
    if (threadIdx.x < kChunk) store_parts<Element>(ones, threadIdx.x, 1.0f);
    ptx::fence_async_shared();
  }
  __syncthreads();
  if (!p.beside_previous) wait_for_previous_kernel();
  if constexpr (kGated) {
    if (warp >= kAllWarps) {
      constexpr int kOwnChunks = (kEach + Shared::kGateWarps - 1) / Shared::kGateWarps;
      const float* gate = p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride;
      for (int s = 0; s < p.segments; ++s) {
        RawGates raw[kOwnChunks];
        const auto each_own = [&](auto&& visit) {
#pragma unroll
          for (int i = 0; i < kOwnChunks; ++i)
            if (const int n = warp - kAllWarps + i * Shared::kGateWarps; n < order.count(s)) visit(n, raw[i]);
        };
        each_own([&](int n, RawGates& own) {
          own = load_gates(gate, p.gate.token_stride, first_of(s, n), p.length, kGradient, lane);
        });
        ptx::mbarrier_wait(&gates_empty[s % 2], s / 2 % 2 ^ 1);
        each_own([&](int n, const RawGates& own) {
          prepare_gates(gates_of_segment(s)[n], own, 1.0f, p.scale, kGradient, lane);
        });
        arrive_warp(&gates_full[s % 2], lane);
      }
      return;
    }
  }
  const auto sync_states = [] {  // of the warps of the state
    if constexpr (kGated) ptx::named_barrier_sync(1, kBlocks * kComputing);
    else __syncthreads();
  };
  for (int n = 0; n < Shared::kStages - 1; ++n) copy(n);

  State<kGated> state(p.scale);
  state.clear_sum();
  float(&after)[32] = kGradient ? state.sum : state.before;
  load_block(after, p.initial, head, block, tile, p.rows, p.columns, p.columns + kNormalized, place);
  [[maybe_unused]] StateColumn last;
  if constexpr (kNormalized) load_last_column(last.before, p.initial, head, block, p.rows, p.columns, place);
  constexpr Weights kWeights = kGated ? Weights::kGates : kGradient ? Weights::kScale : Weights::kNone;
  for (int s = 0, n = 0; s < p.segments; ++s) {
    const int count = kGradient ? order.count(s) : kEach;
    const ChunkGates* const all_gates = gates_of_segment(s);
    if constexpr (kGated) ptx::mbarrier_wait(&gates_full[s % 2], s / 2 % 2);
    for (int i = 0; i < count; ++i, ++n) {
      sync_states();  // all are done with the chunk before, whose stage is filled again
      copy(n + Shared::kStages - 1);
      if constexpr (kGated) state.forget(all_gates[i].total);
      ptx::mbarrier_wait(&full[n % Shared::kStages], n / Shared::kStages & 1);
      const char* const stage = memory + n % Shared::kStages * Shared::kStage;
      const auto add = [&](auto&& column) {
        add_to_state<Element, kWeights>(state.sum, stage + block * kPanel, stage + kBlocks * kPanel, all_gates[i].write,
                                        p.scale, place, column);
      };
      if constexpr (kNormalized) {
        if constexpr (kGated) last.forget(all_gates[i].total);
        ColumnProduct<Element> product(ones);
        add(product);
        last.add(product, 1.0f);
      } else {
        add(NoColumn{});
      }
    }
    if constexpr (kGated) arrive_warp(&gates_empty[s % 2], lane);
    if constexpr (kNormalized) last.join(state);
    if constexpr (!kGradient) state.join();
    if (p.only_last && s + 1 < p.segments) continue;
    const int64_t at = (int64_t{1} * tile * p.head_count + own) * p.segments + s;
    store_block_of_segment(p.states, after, at, block, kBlocks, place);
    if constexpr (kNormalized)
      each_of_column(place,
                     [&](int half, int row) { p.vectors[(at * kBlocks + block) * 64 + row] = last.before[half]; });
  }
  if (p.beside_previous) wait_for_previous_kernel();  // for those after this one
}

}  // namespace lethe::matrix_state
