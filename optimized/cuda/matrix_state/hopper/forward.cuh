#pragma once
// gated_state's values for a state of at most 64 × 64: a CTA sweeps a piece of a head (segments.cuh) in chunks of 64 tokens.
//
//   warp 0         tiles of a chunk, its gates                                        → full
//   warpgroup 1    S, rounded to 16 bits, to shared memory; S = E_C S + (k·D_C)ᵀ v     → state_full
//   warpgroup 2    P = Q Kᵀ of the next chunk; O = E ∘ (Q S) + P V of this one
//
// float16: the rounded state and each row of P are divided by a power of two, so that neither overflows nor becomes subnormal.

#include "optimized/cuda/matrix_state/hopper/segments.cuh"

namespace lethe::matrix_state {

struct ForwardShared {
  static constexpr int kThreads = 3 * kComputing, kMostStages = 8, kFewestStages = 3, kStage = 3 * kPanel;
  /// Of the threads of each warpgroup: 240 in all, two CTAs a multiprocessor.
  static constexpr int kLoadRegisters = 24, kStateRegisters = 96, kReadRegisters = 120;
  struct Small {
    uint64_t full[kMostStages], empty[kMostStages], state_full[2], state_empty[2];
    float largest[kWarps], units[2];
  };
  static constexpr int kOut = 2 * kPanel, kSmall = kOut + kPanel, kRing = kSmall + 1024;
  static_assert(sizeof(Small) <= 1024);
  /// The stages of tiles, and after them those of gates.
  static constexpr int bytes(int stages) { return kRing + stages * (kStage + static_cast<int>(sizeof(ChunkGates))); }
};

template <typename Element, bool kGated>
struct Forward {
  static constexpr bool kHalf = std::is_same_v<Element, __half>;
  using Shared = ForwardShared;
  const StateForwardArguments& p;
  char* const memory;
  const int warp, lane;  ///< of the warpgroup
  const int64_t b, h, head;
  const SegmentOrder order;
  const Piece piece;
  const int chunks;  ///< of the piece

  __device__ Shared::Small& small() const { return *reinterpret_cast<Shared::Small*>(memory + Shared::kSmall); }
  __device__ char* stage(int i) const { return memory + Shared::kRing + i * Shared::kStage; }
  __device__ ChunkGates& gates(int i) const {
    return reinterpret_cast<ChunkGates*>(memory + Shared::kRing + p.stages * Shared::kStage)[i];
  }
  __device__ int64_t first_of(int n) const { return static_cast<int64_t>(piece.begin * kSegmentChunks + n) * kChunk; }

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
        load_tile_of(to, p.maps[0], p.query, full, first_of(n), b, h);
        load_tile_of(to + kPanel, p.maps[1], p.key, full, first_of(n), b, h);
        load_tile_of(to + 2 * kPanel, p.maps[2], p.value, full, first_of(n), b, h);
      }
      if constexpr (kGated) {
        const RawGates raw = next;
        if (n + 1 < chunks) next = raw_of(n + 1);
        prepare_gates(gates(at.index), raw, p.scale, 1.0f, false, lane);
        arrive_warp(full, lane);
      }
    }
  }

  __device__ __forceinline__ void update_state() const {
    wait_for_previous_kernel();
    const Place place{warp, lane};
    State<kGated> state(1.0f);
    if (piece.begin == 0)
      state.load(p.initial ? p.initial + head * p.rows * p.columns : nullptr, p.rows, p.columns, place);
    else state.load_segment(p.states + (head * p.handed + piece.begin - 1) * kStateFloats, place);
    ptx::RingPosition at, rounded;
    for (int n = 0; n < chunks; ++n, at.advance(p.stages), rounded.advance(2)) {
      if (n > 0 && n % kSegmentChunks == 0) state.join();
      ptx::mbarrier_wait(&small().state_empty[rounded.index], rounded.parity ^ 1);
      {
        float now[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) now[i] = state.value(i);
        float inverse = 1.0f;
        if constexpr (kHalf) {
          const float x = largest_of_warp(largest_of(now));
          if (lane == 0) small().largest[warp] = x;
          ptx::named_barrier_sync(1, kComputing);
          const float* all = small().largest;
          const float unit = power_of_two_below(fmaxf(fmaxf(all[0], all[1]), fmaxf(all[2], all[3])));
          inverse = reciprocal_of_power(unit);
          if (warp == 0 && lane == 0) small().units[rounded.index] = unit;
          ptx::named_barrier_sync(1, kComputing);  // before the next largest
        }
        uint32_t packed[16];
        pack_sums<Element>(packed, now, inverse);
        store_packed(ptx::shared_address(memory + rounded.index * kPanel), packed, place);
        ptx::fence_async_shared();
        arrive_warp(&small().state_full[rounded.index], lane);
      }
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      if constexpr (kGated) state.forget(gates(at.index).total);
      add_to_state<Element, kGated>(state.sum, stage(at.index) + kPanel, stage(at.index) + 2 * kPanel,
                                    gates(at.index).write, place);
      arrive_warp(&small().empty[at.index], lane);
    }
    if (p.last && piece.end == order.segments)
      state.store(p.last + head * p.rows * p.columns, 1.0f, p.rows, p.columns, place);
  }

  /// P weighted by D, zero for keys after the row. A warp leaves out the keys after its rows, and masks those before them where a cut is in the chunk.
  __device__ __forceinline__ void weigh(float (&scores)[32], const ChunkGates& gate) const {
    const int i0 = 16 * warp + lane / 4, t = lane % 4;
    const int first_seen[2] = {kGated ? gate.first_seen[i0] : 0, kGated ? gate.first_seen[i0 + 8] : 0};
    const float sum[2] = {kGated ? gate.sum[i0] : 0.0f, kGated ? gate.sum[i0 + 8] : 0.0f};
    const bool cuts = kGated && gate.first_seen[kChunk - 1] > 0;
    const auto weigh_eight = [&](int n, auto masked) {
      const int j = 8 * n + 2 * t;
      const float2 sum_j = kGated ? *reinterpret_cast<const float2*>(&gate.sum[j]) : float2{0.0f, 0.0f};
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
      issue_product<Element, Major::kK, Major::kK>(scores, stage(0), stage(0) + kPanel, false);
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
      issue_product<Element, Major::kK, Major::kMN>(out, tiles, memory + rounded.index * kPanel, false);
      if constexpr (!kGated && !kHalf) issue_product<Element, Major::kMN>(out, weights, tiles + 2 * kPanel, true);
      ptx::wgmma_commit();
      // P of the next chunk; after the last one its own once more, so that no product depends on a branch.
      issue_product<Element, Major::kK, Major::kK>(scores, stage(at.index), stage(at.index) + kPanel, false);
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
        issue_product<Element, Major::kMN>(out, weights, tiles + 2 * kPanel, true);
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
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int64_t token = first + 16 * warp + lane / 4 + 8 * (i % 2);
        const int column = 8 * (i / 2) + lane % 4 * 2;
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
    store_rows_by_map(memory + Shared::kOut, packed, p.maps[3], first, b, h, place);
  }
};

template <typename Element, bool kGated>
__global__ void __launch_bounds__(ForwardShared::kThreads, 2)
    sweep_forward(const __grid_constant__ StateForwardArguments p) {
  extern __shared__ __align__(1024) char memory[];
  const int group = threadIdx.x / kComputing;
  const int64_t all_heads = static_cast<int64_t>(p.batch) * p.heads, head = blockIdx.x % all_heads;
  const SegmentOrder order(p.length, false);
  const Piece piece(order, static_cast<int>(blockIdx.x / all_heads), p.pieces);
  const Forward<Element, kGated> call{p,
                                      memory,
                                      static_cast<int>(threadIdx.x / 32 % kWarps),
                                      static_cast<int>(threadIdx.x % 32),
                                      head / p.heads,
                                      head % p.heads,
                                      head,
                                      order,
                                      piece,
                                      min(piece.end * kSegmentChunks, order.chunks) - piece.begin * kSegmentChunks};
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    ForwardShared::Small& small = call.small();
    for (int i = 0; i < p.stages; ++i) {
      ptx::mbarrier_init(&small.full[i], kGated ? 2 : 1);
      ptx::mbarrier_init(&small.empty[i], 2 * kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&small.state_full[i], kWarps);
      ptx::mbarrier_init(&small.state_empty[i], kWarps);
    }
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (group == 0) {
    ptx::registers_shrink<ForwardShared::kLoadRegisters>();
    if (threadIdx.x < 32) call.load();
  } else if (group == 1) {
    ptx::registers_grow<ForwardShared::kStateRegisters>();
    call.update_state();
  } else {
    ptx::registers_grow<ForwardShared::kReadRegisters>();
    call.read();
  }
}

}  // namespace lethe::matrix_state
