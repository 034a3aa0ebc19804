#pragma once
// gated_state's values for a state of at most 128 rows: a CTA sweeps a piece of a head (segments.cuh) and 64 columns of its state in chunks of 64 tokens.
//
//   warp 0         tiles of a chunk, its gates                                        → full
//   warpgroup 2…   S, rounded to 16 bits, to shared memory; S = E_C S + (k·D_C)ᵀ v     → state_full
//   warpgroup 1    P = Q Kᵀ of the next chunk; O = E ∘ (Q S) + P V of this one
//
// float16: the rounded state and each row of P are divided by a power of two, so that neither overflows nor becomes subnormal.

#include "optimized/cuda/matrix_state/hopper/segments.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 rows of the state, a warpgroup each.
template <int kBlocks>
struct ForwardShared {
  static constexpr int kThreads = (2 + kBlocks) * kComputing, kStateWarps = kBlocks * kWarps;
  static constexpr int kKey = kBlocks * kPanel, kValue = 2 * kKey, kStage = kValue + kPanel, kState = kBlocks * kPanel;
  static constexpr int kMostStages = kBlocks == 1 ? 8 : 4;
  /// CTAs of a multiprocessor, and the stages of each that allow that.
  static constexpr int kTogether = kBlocks == 1 ? 2 : 1, kFewestStages = kBlocks == 1 ? 3 : 4;
  /// Of each thread at the launch, and of those of each warpgroup.
  static constexpr int kRegisters = kBlocks == 1 ? 80 : 128, kLoadRegisters = kBlocks == 1 ? 24 : 40,
                       kStateRegisters = kBlocks == 1 ? 96 : 112, kReadRegisters = kBlocks == 1 ? 120 : 160;
  struct Small {
    uint64_t full[kMostStages], empty[kMostStages], state_full[2], state_empty[2];
    float largest[kStateWarps], units[2];
  };
  static constexpr int kOut = 2 * kState, kSmall = kOut + kPanel, kRing = kSmall + 1024;
  static_assert(sizeof(Small) <= 1024);
  /// The stages of tiles, and after them those of gates.
  static constexpr int bytes(int stages) { return kRing + stages * (kStage + static_cast<int>(sizeof(ChunkGates))); }
  static_assert(kTogether * (bytes(kFewestStages) + 1024) <= 228 * 1024 && bytes(kMostStages) <= 227 * 1024);
};

template <typename Element, bool kGated, int kBlocks>
struct Forward {
  static constexpr bool kHalf = std::is_same_v<Element, __half>;
  using Shared = ForwardShared<kBlocks>;
  const StateForwardArguments& p;
  char* const memory;
  const int warp, lane;  ///< of the warpgroup
  const int b, h, head;
  const int tile;  ///< of columns
  const SegmentOrder order;
  const Piece piece;
  const int chunks;  ///< of the piece

  __device__ typename Shared::Small& small() const {
    return *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  }
  __device__ char* rounded_state(int i) const { return memory + i * Shared::kState; }
  __device__ char* stage(int i) const { return memory + Shared::kRing + i * Shared::kStage; }
  __device__ ChunkGates& gates(int i) const {
    return reinterpret_cast<ChunkGates*>(memory + Shared::kRing + p.stages * Shared::kStage)[i];
  }
  __device__ int64_t first_of(int n) const { return static_cast<int64_t>(piece.begin * order.each + n) * kChunk; }

  __device__ __forceinline__ void load() const {
    const float* gate = kGated ? p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride : nullptr;
    const auto raw_of = [&](int n) {
      return load_gates(gate, p.gate.token_stride, first_of(n), p.length, false, lane);
    };
    RawGates next{};
    if constexpr (kGated) next = raw_of(0);
    ptx::RingPosition at;
    for (int n = 0; n < chunks; ++n, at.advance(p.stages)) {
      ptx::mbarrier_wait(&small().empty[at.index], at.parity ^ 1);
      uint64_t* const full = &small().full[at.index];
      if (lane == 0) {
        char* const to = stage(at.index);
        ptx::mbarrier_arrive_expect(full, Shared::kStage);
        load_tile_of<kBlocks>(to, p.maps[0], p.query, full, 0, first_of(n), b, h);
        load_tile_of<kBlocks>(to + Shared::kKey, p.maps[1], p.key, full, 0, first_of(n), b, h);
        load_tile_of<1>(to + Shared::kValue, p.maps[2], p.value, full, 64 * tile, first_of(n), b, h);
      }
      if constexpr (kGated) {
        const RawGates raw = next;
        if (n + 1 < chunks) next = raw_of(n + 1);
        prepare_gates(gates(at.index), raw, p.scale, 1.0f, false, lane);
        arrive_warp(full, lane);
      }
    }
  }

  /// A warpgroup: its block of the state.
  __device__ __forceinline__ void update_state(int block) const {
    wait_for_previous_kernel();
    const Place place{warp, lane};
    State<kGated> state(1.0f);
    if (piece.begin == 0) load_block(state.before, p.initial, head, block, tile, p.rows, p.columns, place);
    else
      load_block_of_segment(state.before, p.states,
                            (int64_t{1} * tile * p.batch * p.heads + head) * p.handed + piece.begin - 1, block, kBlocks,
                            place);
    state.clear_sum();
    ptx::RingPosition at, rounded;
    for (int n = 0; n < chunks; ++n, at.advance(p.stages), rounded.advance(2)) {
      if (n > 0 && n % order.each == 0) state.join();
      ptx::mbarrier_wait(&small().state_empty[rounded.index], rounded.parity ^ 1);
      {
        float now[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) now[i] = state.value(i);
        float inverse = 1.0f;
        if constexpr (kHalf) {
          float* const all = small().largest;
          const float x = largest_of_warp(largest_of(now));
          if (lane == 0) all[kWarps * block + warp] = x;
          ptx::named_barrier_sync(1, kBlocks * kComputing);
          float most = all[0];
#pragma unroll
          for (int i = 1; i < Shared::kStateWarps; ++i) most = fmaxf(most, all[i]);
          const float unit = power_of_two_below(most);
          inverse = reciprocal_of_power(unit);
          if (block == 0 && warp == 0 && lane == 0) small().units[rounded.index] = unit;
          ptx::named_barrier_sync(1, kBlocks * kComputing);  // before the next largest
        }
        uint32_t packed[16];
        pack_sums<Element>(packed, now, inverse);
        store_packed(ptx::shared_address(rounded_state(rounded.index) + block * kPanel), packed, place);
        ptx::fence_async_shared();
        arrive_warp(&small().state_full[rounded.index], lane);
      }
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      if constexpr (kGated) state.forget(gates(at.index).total);
      add_to_state<Element, kGated ? Weights::kGates : Weights::kNone>(
          state.sum, stage(at.index) + Shared::kKey + block * kPanel, stage(at.index) + Shared::kValue,
          gates(at.index).write, 1.0f, place);
      arrive_warp(&small().empty[at.index], lane);
    }
    if (p.last && piece.end == order.segments)
      store_block(p.last, head, block, tile, p.rows, p.columns, place, [&](int i) { return state.value(i); });
  }

  /// P of a chunk, issued.
  __device__ __forceinline__ void issue_scores(float (&scores)[32], const char* tiles) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      issue_product<Element, ptx::Major::kK, ptx::Major::kK>(scores, tiles + i * kPanel,
                                                             tiles + Shared::kKey + i * kPanel, i > 0);
  }

  /// P weighted by D, zero for keys after the row. A warp leaves out the keys after its rows, and masks those before them where a cut is in the chunk.
  __device__ __forceinline__ void weigh(float (&scores)[32], const ChunkGates& gate) const {
    const int i0 = 16 * warp + lane / 4, t = lane % 4;
    const int first_seen[2] = {kGated ? gate.first_seen[i0] : 0, kGated ? gate.first_seen[i0 + 8] : 0};
    const float sum[2] = {kGated ? gate.sum[i0] : 0.0f, kGated ? gate.sum[i0 + 8] : 0.0f};
    const bool cuts = kGated && gate.first_seen[kChunk - 1] > 0;
    const auto weigh_eight = [&](int n, auto masked) {
      const int j = 8 * n + 2 * t;
      [[maybe_unused]] const float2 sum_j =
          kGated ? *reinterpret_cast<const float2*>(&gate.sum[j]) : float2{0.0f, 0.0f};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2, row = i0 + 8 * half;
        const bool seen = !decltype(masked)::value || static_cast<unsigned>(j + e % 2 - first_seen[half]) <=
                                                          static_cast<unsigned>(row - first_seen[half]);
        float& score = scores[4 * n + e];
        if constexpr (kGated) score *= p.scale * exp2_approximate(sum[half] - (e % 2 ? sum_j.y : sum_j.x));
        score = seen ? score : 0.0f;
      }
    };
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n / 2 > warp) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[4 * n + e] = 0.0f;
      } else if (n / 2 == warp || cuts) {
        weigh_eight(n, std::true_type{});
      } else {
        weigh_eight(n, std::false_type{});
      }
    }
  }

  /// What a row of P, weighted, is divided by.
  __device__ __forceinline__ void row_units(float (&unit)[2], const float (&scores)[32]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unit[half] = 1.0f;
      if constexpr (kHalf) {
        float x = 0.0f;
#pragma unroll
        for (int c = 0; c < 8; ++c)
          x = fmaxf(x, fmaxf(fabsf(scores[4 * c + 2 * half]), fabsf(scores[4 * c + 2 * half + 1])));
        // Not below 2^-40, by which sums are divided: a row may have no weight but that of the state.
        unit[half] = power_of_two_below(fmaxf(quad_max(x), 0x1p-40f));
      }
    }
  }

  __device__ __forceinline__ void read() const {
    using ptx::Major;
    const Place place{warp, lane};
    const int i0 = 16 * warp + lane / 4;
    uint32_t weights[16];
    float row_unit[2];
    const auto take_weights = [&](float(&scores)[32]) {
      row_units(row_unit, scores);
      if constexpr (kHalf) scale_rows(scores, reciprocal_of_power(row_unit[0]), reciprocal_of_power(row_unit[1]));
      pack_sums<Element>(weights, scores, 1.0f);
    };
    ptx::RingPosition at, rounded;
    ptx::mbarrier_wait(&small().full[0], 0);
    {
      float scores[32];
      ptx::undefined(scores);
      ptx::fence_registers(scores);
      ptx::wgmma_fence();
      issue_scores(scores, stage(0));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(scores);
      weigh(scores, gates(0));
      take_weights(scores);
    }
    for (int n = 0; n < chunks; ++n, rounded.advance(2)) {
      const uint32_t index = at.index;
      const char* const tiles = stage(index);
      if (n + 1 < chunks) {
        at.advance(p.stages);
        ptx::mbarrier_wait(&small().full[at.index], at.parity);
      }
      ptx::mbarrier_wait(&small().state_full[rounded.index], rounded.parity);
      float out[32], scores[32];
      ptx::undefined(out);
      ptx::undefined(scores);
      ptx::fence_registers(out);
      ptx::fence_registers(scores);
      ptx::fence_registers(weights);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        issue_product<Element, Major::kK, Major::kMN>(out, tiles + i * kPanel,
                                                      rounded_state(rounded.index) + i * kPanel, i > 0);
      if constexpr (!kGated && !kHalf) issue_product<Element, Major::kMN>(out, weights, tiles + Shared::kValue, true);
      ptx::wgmma_commit();
      // P of the next chunk; after the last one its own once more, so that no product depends on a branch.
      issue_scores(scores, stage(at.index));
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out);
      if constexpr (kGated || kHalf) {
        const ChunkGates& gate = gates(index);
        const float unit = kHalf ? small().units[rounded.index] : 1.0f;
        scale_rows(out, unit * (kGated ? gate.read[i0] : 1.0f) * reciprocal_of_power(row_unit[0]),
                   unit * (kGated ? gate.read[i0 + 8] : 1.0f) * reciprocal_of_power(row_unit[1]));
        ptx::fence_registers(out);
        ptx::wgmma_fence();
        issue_product<Element, Major::kMN>(out, weights, tiles + Shared::kValue, true);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        ptx::fence_registers(scores);
        arrive_warp(&small().state_empty[rounded.index], lane);
        weigh(scores, gates(at.index));
        ptx::wgmma_wait<0>();
        ptx::fence_registers(out);
        ptx::fence_registers(weights);
        arrive_warp(&small().empty[index], lane);
        scale_rows(out, row_unit[0] * (kGated ? 1.0f : p.scale), row_unit[1] * (kGated ? 1.0f : p.scale));
        write(out, first_of(n), place);
      } else {
        ptx::fence_registers(weights);
        arrive_warp(&small().state_empty[rounded.index], lane);
        scale_rows(out, p.scale, p.scale);
        write(out, first_of(n), place);
        ptx::wgmma_wait<0>();
        ptx::fence_registers(scores);
        arrive_warp(&small().empty[index], lane);
        weigh(scores, gates(at.index));
      }
      take_weights(scores);
    }
    if (lane == 0) ptx::bulk_wait<0>();
  }

  __device__ __forceinline__ void write(const float (&out)[32], int64_t first, Place place) const {
    if (p.float_out) {
      const int own = ptx::opaque(lane),
                first_column = 64 * ptx::opaque(tile);  // so that addresses occupy no registers elsewhere
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int64_t token = first + 16 * warp + own / 4 + 8 * (i % 2);
        const int column = first_column + 8 * (i / 2) + own % 4 * 2;
        if (token < p.length && column < p.columns)
          *reinterpret_cast<float2*>(static_cast<float*>(p.out) + ((b * p.length + token) * p.heads + h) * p.columns +
                                     column) = {out[2 * i], out[2 * i + 1]};
      }
      return;
    }
    uint32_t packed[16];
    pack_sums<Element>(packed, out, 1.0f);
    if (lane == 0) ptx::bulk_wait_read<0>();  // the previous chunk's rows have left
    __syncwarp();
    store_rows_by_map(memory + Shared::kOut, packed, p.maps[3], 64 * tile, first, b, h, place);
  }
};

template <typename Element, bool kGated, int kBlocks>
__global__ void __launch_bounds__(ForwardShared<kBlocks>::kThreads, ForwardShared<kBlocks>::kTogether)
    sweep_forward(const __grid_constant__ StateForwardArguments p) {
  using Shared = ForwardShared<kBlocks>;
  extern __shared__ __align__(1024) char memory[];
  const int group = threadIdx.x / kComputing;
  const int all_heads = p.batch * p.heads, head = static_cast<int>(blockIdx.x / p.tiles) % all_heads;
  const SegmentOrder order(p.length, false, kChunksOfSegment<kBlocks>);
  const Piece piece(order, static_cast<int>(blockIdx.x) / (all_heads * p.tiles), p.pieces);
  const Forward<Element, kGated, kBlocks> call{p,
                                               memory,
                                               static_cast<int>(threadIdx.x / 32 % kWarps),
                                               static_cast<int>(threadIdx.x % 32),
                                               head / p.heads,
                                               head % p.heads,
                                               head,
                                               static_cast<int>(blockIdx.x % p.tiles),
                                               order,
                                               piece,
                                               min(piece.end * order.each, order.chunks) - piece.begin * order.each};
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    auto& small = call.small();
    for (int i = 0; i < p.stages; ++i) {
      ptx::mbarrier_init(&small.full[i], kGated ? 2 : 1);
      ptx::mbarrier_init(&small.empty[i], Shared::kStateWarps + kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&small.state_full[i], Shared::kStateWarps);
      ptx::mbarrier_init(&small.state_empty[i], kWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (group == 0) {
    change_registers<Shared::kRegisters, Shared::kLoadRegisters>();
    if (threadIdx.x < 32) call.load();
  } else if (group == 1) {
    change_registers<Shared::kRegisters, Shared::kReadRegisters>();
    call.read();
  } else {
    change_registers<Shared::kRegisters, Shared::kStateRegisters>();
    call.update_state(group - 2);
  }
}

}  // namespace lethe::matrix_state
