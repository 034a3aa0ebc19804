#pragma once
// The states after a head's segments by a CTA that sweeps the head, with the bits of segment_sums and join_segments (segments.cuh), whose states go to memory
// and back once more: where heads suffice for all multiprocessors, or where those that are left sweep heads' beginnings beside it.

#include "optimized/cuda/matrix_state/hopper/segments.cuh"

namespace lethe::matrix_state {

template <int kBlocks, bool kNormalized>
struct HeadStatesShared {
  static constexpr int kStages = kBlocks == 1 ? 5 : 4, kStage = (kBlocks + 1) * kPanel, kThreads = kBlocks * kComputing;
  static constexpr int kGates = kStages * kStage, kEach = kChunksOfSegment<kBlocks>,
                       kOnes = (kGates + kEach * static_cast<int>(sizeof(ChunkGates)) + 15) / 16 * 16,
                       kFull = kOnes + (kNormalized ? static_cast<int>(sizeof(SplitVector)) + kBeyondSplitVector : 0);
  static constexpr int kBytes = kFull + kStages * static_cast<int>(sizeof(uint64_t));
  static_assert(kFull % 8 == 0 && 2 * (kBytes + 1024) <= 228 * 1024);
};

/// A CTA: a tile of columns of a head's states after its first segments, 64 rows a warpgroup. By time, of a normalised call with z; or, kGradient and not
/// normalised, in reverse R with the bits of gradients_states.cuh for two blocks, where it is one sum.
template <typename Element, bool kGated, int kBlocks, bool kGradient, bool kNormalized>
__global__ void __launch_bounds__(HeadStatesShared<kBlocks, kNormalized>::kThreads, 2)
    head_states(const __grid_constant__ SegmentArguments p) {
  static_assert(!kGradient || !kNormalized);
  using Shared = HeadStatesShared<kBlocks, kNormalized>;
  constexpr int kAllWarps = kBlocks * kWarps, kEach = Shared::kEach,
                kOwnChunks = (kEach + kAllWarps - 1) / kAllWarps;  // of a segment, whose gates a warp prepares
  extern __shared__ __align__(1024) char memory[];
  let_next_kernel_start();
  ChunkGates* const all_gates = reinterpret_cast<ChunkGates*>(memory + Shared::kGates);
  uint64_t* const full = reinterpret_cast<uint64_t*>(memory + Shared::kFull);
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
    ptx::mbarrier_init_fence();
  }
  [[maybe_unused]] SplitVector& ones = *reinterpret_cast<SplitVector*>(memory + Shared::kOnes);
  if constexpr (kNormalized) {
    if (threadIdx.x < kChunk) store_parts<Element>(ones, threadIdx.x, 1.0f);
    ptx::fence_async_shared();
  }
  __syncthreads();
  if (!p.beside_previous) wait_for_previous_kernel();
  for (int n = 0; n < Shared::kStages - 1; ++n) copy(n);

  // A warp's gates of a segment: their numbers come while the segment before is summed.
  [[maybe_unused]] RawGates raw[kOwnChunks];
  const auto load_segment_gates = [&](int s) {
    const float* gate = p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride;
#pragma unroll
    for (int i = 0; i < kOwnChunks; ++i)
      if (warp + i * kAllWarps < order.count(s))
        raw[i] = load_gates(gate, p.gate.token_stride, first_of(s, warp + i * kAllWarps), p.length, kGradient, lane);
  };
  if constexpr (kGated) load_segment_gates(0);

  State<kGated> state(p.scale);
  state.clear_sum();
  float(&after)[32] = kGradient ? state.sum : state.before;
  load_block(after, p.initial, head, block, tile, p.rows, p.columns, p.columns + kNormalized, place);
  [[maybe_unused]] StateColumn last;
  if constexpr (kNormalized) load_last_column(last.before, p.initial, head, block, p.rows, p.columns, place);
  constexpr Weights kWeights = kGated ? Weights::kGates : kGradient ? Weights::kScale : Weights::kNone;
  for (int s = 0, n = 0; s < p.segments; ++s) {
    const int count = kGradient ? order.count(s) : kEach;
    if constexpr (kGated) {
      if (s > 0) __syncthreads();  // all warps are done with the gates of the segment before
#pragma unroll
      for (int i = 0; i < kOwnChunks; ++i)
        if (warp + i * kAllWarps < count)
          prepare_gates(all_gates[warp + i * kAllWarps], raw[i], 1.0f, p.scale, kGradient, lane);
      if (s + 1 < p.segments) load_segment_gates(s + 1);
    }
    for (int i = 0; i < count; ++i, ++n) {
      __syncthreads();  // all warps are done with the chunk before, whose stage is filled again; the gates are there
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
    if constexpr (kNormalized) last.join(state);
    if constexpr (!kGradient) state.join();
    if (p.only_last && s + 1 < p.segments) continue;
    const int64_t at = (int64_t{1} * tile * p.head_count + own) * p.segments + s;
    float4* const to =
        reinterpret_cast<float4*>(p.states + (at * kBlocks + block) * kBlockFloats) + threadIdx.x % kComputing;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      to[i * kComputing] = {after[4 * i], after[4 * i + 1], after[4 * i + 2], after[4 * i + 3]};
    if constexpr (kNormalized)
      each_of_column(place,
                     [&](int half, int row) { p.vectors[(at * kBlocks + block) * 64 + row] = last.before[half]; });
  }
  if (p.beside_previous) wait_for_previous_kernel();  // for those after this one
}

}  // namespace lethe::matrix_state
