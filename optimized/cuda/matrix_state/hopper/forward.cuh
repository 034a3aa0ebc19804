#pragma once
// gated_state's values for a state of at most 128 rows: a CTA sweeps a piece of a head (segments.cuh) and 64 columns of its state in chunks of 64 tokens.
//
//   warp 0         tiles of a chunk                                                   → full, values_full; and with gates or a normaliser a chunk's values leave
//   warps 1 to 3   gates of every third chunk                                         → full
//   warpgroup 2…   S, rounded to 16 bits, to shared memory; S = E_C S + (k·D_C)ᵀ v     → state_full
//   warpgroup 1    P = Q Kᵀ of the next chunk; O = E ∘ (Q S) + P V of this one
//
// Where O is computed in turn (forward_in_turn.cuh), warpgroups 1 and 2 each do that of every other chunk, and S has warpgroup 3.
//
// With a normaliser z is a column of S apart, and Q z and the rows' sums of P are computed beside Q S and P V: O is divided by them. For the gradients dO is
// divided in place of O, and −O·dO divided twice is the gradient of z·q.
//
// float16: the rounded state and each row of P are divided by a power of two, so that neither overflows nor becomes subnormal.

#include "optimized/cuda/matrix_state/hopper/forward_in_turn.cuh"
#include "optimized/cuda/matrix_state/hopper/forward_read.cuh"
#include "optimized/cuda/matrix_state/hopper/forward_read_weighted.cuh"
#include "optimized/cuda/matrix_state/hopper/kept_states.cuh"
#include "optimized/cuda/matrix_state/hopper/segments.cuh"
#include "optimized/cuda/ptx/publish.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 rows of the state, a warpgroup each. kReaders: warpgroups that compute O, of two each every other chunk.
template <int kBlocks_, int kReaders = 1>
struct ForwardShared {
  static constexpr int kBlocks = kBlocks_;
  static_assert(kReaders == 1 || (kReaders == 2 && kBlocks == 1));
  static constexpr int kThreads = (1 + kReaders + kBlocks) * kComputing, kStateWarps = kBlocks * kWarps;
  /// Of __launch_bounds__: of two readers more than there are, for kRegisters.
  static constexpr int kMostThreads = kReaders > 1 ? 608 : kThreads;
  static constexpr int kKey = kBlocks * kPanel, kValue = 2 * kKey, kStage = kValue + kPanel, kState = kBlocks * kPanel;
  static constexpr int kGateWarps = kWarps - 1;
  static constexpr int kMostStages = kBlocks > 1 ? 4 : 7;
  /// CTAs of a multiprocessor, and the stages of each that allow that.
  static constexpr int kTogether = kBlocks == 1 && kReaders == 1 ? 2 : 1, kFewestStages = kBlocks == 1 ? 3 : 4;
  /// Of heads in pieces by a CTA a multiprocessor: as many as leave place for a CTA of head_states, beside which heads' beginnings are swept.
  static constexpr int kStagesBesideStates = 4;
  /// Of each thread at the launch, and of those of each warpgroup. Of two readers as many as leave those of a CTA of head_states.
  static constexpr int kRegisters = kBlocks > 1    ? 128
                                    : kReaders > 1 ? 96
                                                   : 80,
                       kLoadRegisters = kBlocks == 1 ? 24 : 40, kStateRegisters = kBlocks == 1 ? 96 : 112,
                       kReadRegisters = kBlocks > 1    ? 160
                                        : kReaders > 1 ? 128
                                                       : 120;
  /// Of a normalised call of one block: z, rounded as S is, and ones, in panels that follow the stages; else in vectors.
  static constexpr bool kPanels = kBlocks == 1;
  struct Small {
    SplitVector ones, columns[2][kBlocks];
    uint64_t full[kMostStages], empty[kMostStages], state_full[2], state_empty[2], grad_full[kWarps];
    uint64_t values_full[kMostStages], values_empty[kMostStages], rows_full, rows_empty;
    float largest[2][kStateWarps], units[2][2];  ///< of S and of z
  };
  static constexpr int kOut = 2 * kState, kSmall = kOut + kReaders * kPanel, kRing = kSmall + 2048;
  static_assert(sizeof(Small) <= 2048);
  /// The stages of tiles, after them the normaliser's panels, and after those the stages of gates.
  static constexpr int panels(bool normalized) { return kPanels && normalized ? 2 * kColumnPanel : 0; }
  static constexpr int bytes(int stages, bool normalized) {
    return kRing + stages * (kStage + static_cast<int>(sizeof(ForwardGates))) + panels(normalized);
  }
  static_assert(kTogether * (bytes(kFewestStages, true) + 1024) <= 228 * 1024 &&
                bytes(kMostStages, true) <= 227 * 1024);
};

template <typename Element_, bool kGated_, int kBlocks, Normalizer kNormalizer_, int kReaders = 1>
struct Forward {
  using Element = Element_;
  static constexpr Normalizer kNormalizer = kNormalizer_;
  static constexpr bool kGated = kGated_, kHalf = std::is_same_v<Element, __half>,
                        kNormalized = kNormalizer != Normalizer::kNone,
                        kLeavesDivisors = kNormalizer == Normalizer::kLeaves,
                        kDividesRows = kNormalizer == Normalizer::kDivides || kLeavesDivisors;
  /// Values come, and are handed back, apart from queries and keys (forward_read_weighted.cuh); and whether the first of two pieces may hand its state on.
  static constexpr bool kWeighted = kGated || kNormalized, kHandsOn = kWeighted && kBlocks == 1;
  /// Whether the warp that loads tiles also sends a chunk's rows, by one copy: the rows' warps have no room for it in their chain.
  static constexpr bool kLoaderSends = kWeighted && kNormalizer != Normalizer::kGradients;
  /// Whether a chunk's chains are shortened: by places that are held (products.cuh), and keys weighted by halves. float16 has no registers for it.
  static constexpr bool kHoldsPlace = kLoaderSends && !kHalf && kBlocks == 1;
  /// Whether states may be left for a backward: with z·q that is an instance of its own, so that the other one needs no test. In float16 that costs spills.
  static constexpr bool kLeavesStates =
      kNormalizer != Normalizer::kGradients && !(kHoldsPlace && kGated && kNormalizer == Normalizer::kDivides);
  static_assert(!kLeavesDivisors || (kGated && kBlocks == 1));
  using Shared = ForwardShared<kBlocks, kReaders>;
  static constexpr bool kPanels = kNormalized && Shared::kPanels;
  static constexpr int kGates = Shared::panels(kNormalized);  ///< bytes between the stages of tiles and those of gates
  const StateForwardArguments& p;
  char* const memory;
  const int warp, lane;  ///< of the warpgroup
  const int b, h, head;
  const int tile;  ///< of columns
  const SegmentOrder order;
  const Piece piece;
  const int chunks;  ///< of the piece
  const int reader;  ///< of a warpgroup that computes O: which

  /// The same with the warp's and lane's number in registers.
  __device__ __forceinline__ Forward with_held_place() const {
    const Place at = held({warp, lane});
    return {p, memory, at.block & (kWarps - 1), at.lane & 31, b, h, head, tile, order, piece, chunks, reader};
  }

  __device__ typename Shared::Small& small() const {
    return *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  }
  __device__ char* rounded_state(int i) const { return memory + i * Shared::kState; }
  __device__ char* stage(int i) const { return memory + Shared::kRing + i * Shared::kStage; }
  /// From which a chunk's rows leave.
  __device__ char* out_tile() const { return memory + Shared::kOut + (kReaders > 1 ? reader * kPanel : 0); }
  __device__ char* state_panel() const { return stage(p.stages); }
  __device__ char* ones_panel() const { return state_panel() + kColumnPanel; }
  __device__ ForwardGates& gates(int i) const { return reinterpret_cast<ForwardGates*>(stage(p.stages) + kGates)[i]; }
  /// Of the states that pieces begin with: those of this head and tile. Not kept in registers.
  __device__ int handed_state() const {
    return ptx::opaque(tile) * (p.batch * p.heads - p.whole_heads) + ptx::opaque(head) - p.whole_heads;
  }
  __device__ int32_t* mark(int block) const { return p.marks + (handed_state() * kBlocks + block) * kWarps + warp; }
  __device__ int64_t first_of(int n) const { return static_cast<int64_t>(piece.begin * order.each + n) * kChunk; }

  /// Of the warp that loads, where it sends: chunk n's rows.
  __device__ __forceinline__ void send_rows_of_chunk(int n) const {
    ptx::mbarrier_wait(&small().rows_full, n & 1);
    if (lane > 0) return;
    ptx::store_tile(&p.maps[3], out_tile(), 64 * tile, h, static_cast<int>(first_of(n)), b);
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(&small().rows_empty);
  }

  /// A warp: tiles of every chunk. Where it sends rows, those of the chunk that was in a stage, after whose last arrival they come.
  __device__ __forceinline__ void load() const {
    ptx::RingPosition at;
    for (int n = 0; n < chunks; ++n, at.advance(p.stages)) {
      ptx::mbarrier_wait(&small().empty[at.index], at.parity ^ 1);
      uint64_t* const full = &small().full[at.index];
      if (lane == 0) {
        char* const to = stage(at.index);
        ptx::mbarrier_arrive_expect(full, kWeighted ? Shared::kValue : Shared::kStage);
        load_tile_of<kBlocks>(to, p.maps[0], p.query, full, 0, first_of(n), b, h);
        load_tile_of<kBlocks>(to + Shared::kKey, p.maps[1], p.key, full, 0, first_of(n), b, h);
        if constexpr (!kWeighted)
          load_tile_of<1>(to + Shared::kValue, p.maps[2], p.value, full, 64 * tile, first_of(n), b, h);
      }
      if constexpr (kWeighted) {
        ptx::mbarrier_wait(&small().values_empty[at.index], at.parity ^ 1);
        uint64_t* const values_full = &small().values_full[at.index];
        if (lane == 0) {
          ptx::mbarrier_arrive_expect(values_full, kPanel);
          load_tile_of<1>(stage(at.index) + Shared::kValue, p.maps[2], p.value, values_full, 64 * tile, first_of(n), b,
                          h);
        }
      }
      if constexpr (kLoaderSends) {
        if (!p.float_out && n >= p.stages) send_rows_of_chunk(n - p.stages);
      }
    }
    if constexpr (kLoaderSends) {
      if (p.float_out) return;
      for (int n = max(chunks - p.stages, 0); n < chunks; ++n) send_rows_of_chunk(n);
      if (lane == 0) ptx::bulk_wait<0>();
    }
  }

  /// Warp `w` of kGateWarps: the gates of every chunk n with n % kGateWarps = w. Their numbers come while the chunk's stage is still in use.
  __device__ __forceinline__ void prepare_gates_of_chunks(int w) const {
    const float* gate = p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride;
    ptx::RingPosition at;
    for (int i = 0; i < w; ++i) at.advance(p.stages);
    for (int n = w; n < chunks; n += Shared::kGateWarps) {
      const int64_t token = first_of(n) + 2 * lane;
      const auto load = [&](int64_t i) { return i < p.length ? load_global(gate + i * p.gate.token_stride) : 0.0f; };
      const RawGates raw{load(token), load(token + 1), 0.0f};
      ptx::mbarrier_wait(&small().empty[at.index], at.parity ^ 1);
      prepare_gates(gates(at.index), raw, p.scale, 1.0f, false, lane);
      prepare_borders(gates(at.index), lane);
      arrive_warp(&small().full[at.index], lane);
#pragma unroll
      for (int i = 0; i < Shared::kGateWarps; ++i) at.advance(p.stages);
    }
  }

  /// A warpgroup: its block of the state.
  __device__ __forceinline__ void update_state(int block) const {
    if (piece.begin > 0) {
      wait_for_previous_kernel();
      // By a vote, so that all lanes leave the loop together: else the compiler keeps no address in uniform registers.
      while (kHandsOn && p.marks && !__all_sync(kAllLanes, ptx::load_acquire(mark(block)))) __nanosleep(100);
    }
    const Place place = kHoldsPlace ? held({warp, lane}) : Place{warp, lane};
    const int stride = p.columns + kNormalized;
    State<kGated> state(1.0f);
    StateColumn last;
    if (piece.begin == 0) {
      load_block(state.before, p.initial, head, block, tile, p.rows, p.columns, stride, place);
      if constexpr (kNormalized) load_last_column(last.before, p.initial, head, block, p.rows, p.columns, place);
    } else {
      const int64_t segment = int64_t{1} * handed_state() * p.handed + piece.begin - 1;
      load_block_of_segment(state.before, p.states, segment, block, kBlocks, place);
      if constexpr (kNormalized) load_column_of_segment(last.before, p.vectors, segment, block, kBlocks, place);
    }
    state.clear_sum();
    const auto keep_after = [&](int segment_in_order) {
      if (kNormalizer != Normalizer::kGradients || !p.kept_states) return;
      const int64_t of_head = int64_t{1} * head * (order.segments - 1) + segment_in_order;
      store_block_of_segment(p.kept_states, state.before, of_head, block, kBlocks, place);
      each_of_column(place, [&](int half, int row) {
        p.kept_vectors[(of_head * kBlocks + block) * 64 + row] = last.before[half];
      });
    };
    if (piece.begin > 0) keep_after(piece.begin - 1);
    ptx::RingPosition at;
    for (int n = 0; n < chunks; ++n, at.advance(p.stages)) {
      const int buffer = n % 2;  // of the rounded state
      // So that addresses occupy no registers over the loop.
      const Place own = kHoldsPlace ? Place{place.block & (kWarps - 1), ptx::opaque(place.lane) & 31} : place;
      if (n > 0 && n % order.each == 0) {
        if constexpr (kNormalized) last.join(state);
        state.join();
        keep_after(piece.begin + n / order.each - 1);
      }
      ptx::mbarrier_wait(&small().state_empty[buffer], n / 2 % 2 ^ 1);
      if constexpr (kLeavesStates) wait_until_state_left(*this);
      {
        float now[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) now[i] = state.value(i);
        float row[2] = {0.0f, 0.0f};
        if (own.lane % 4 == 0)  // the others have none
          for (int half = 0; half < 2; ++half) row[half] = last.value(state, half);
        float inverse[2] = {1.0f, 1.0f};
        if constexpr (kHalf) {
          auto& all = small().largest;
          const float of_state = largest_of_warp(largest_of(now)),
                      of_column = kNormalized ? largest_of_warp(fmaxf(fabsf(row[0]), fabsf(row[1]))) : 0.0f;
          if (lane == 0) {
            all[0][kWarps * block + warp] = of_state;
            if constexpr (kNormalized) all[1][kWarps * block + warp] = of_column;
          }
          ptx::named_barrier_sync(1, kBlocks * kComputing);
#pragma unroll
          for (int of = 0; of < 1 + kNormalized; ++of) {
            float most = all[of][0];
#pragma unroll
            for (int i = 1; i < Shared::kStateWarps; ++i) most = fmaxf(most, all[of][i]);
            const float unit = power_of_two_below(most);
            inverse[of] = reciprocal_of_power(unit);
            if (block == 0 && warp == 0 && lane == 0) small().units[buffer][of] = unit;
          }
          ptx::named_barrier_sync(1, kBlocks * kComputing);  // before the next largest
        }
        if constexpr (kNormalized)
          each_of_column(own, [&](int half, int of) {
            const float x = row[half] * inverse[1];
            if constexpr (kPanels) store_parts<Element>(state_panel(), 4 * buffer, of, x);
            else store_parts<Element>(small().columns[buffer][block], of, x);
          });
        uint32_t packed[16];
        pack_sums<Element>(packed, now, inverse[0]);
        const uint32_t rounded = ptx::shared_address(rounded_state(buffer) + block * kPanel);
        if constexpr (kHoldsPlace) store_packed_from(rounded, packed, own);
        else store_packed(rounded, packed, own);
        ptx::fence_async_shared();
        arrive_warp(&small().state_full[buffer], own.lane);
        if constexpr (kLeavesStates)
          leave_state(*this, buffer, n, block, inverse[0], [&](int half) { return last.value(state, half); });
      }
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      if constexpr (kGated) state.forget(gates(at.index).total);
      if constexpr (kWeighted) ptx::mbarrier_wait(&small().values_full[at.index], at.parity);
      const auto add = [&](auto&& column) {
        const char* const keys = stage(at.index) + Shared::kKey + block * kPanel;
        const char* const values = stage(at.index) + Shared::kValue;
        if constexpr (kGated && kHoldsPlace)
          add_to_state_by_halves<Element>(state.sum, keys, values, gates(at.index).write, own, column);
        else
          add_to_state<Element, kGated ? Weights::kGates : Weights::kNone>(state.sum, keys, values,
                                                                           gates(at.index).write, 1.0f, own, column);
      };
      if constexpr (kNormalized) {
        if constexpr (kGated) last.forget(gates(at.index).total);
        ColumnProduct<Element> product(small().ones);
        add(product);
        last.add(product, 1.0f);
      } else {
        add(NoColumn{});
      }
      arrive_warp(&small().empty[at.index], own.lane);
    }
    if (kLeavesStates && p.kept.wanted && lane == 0) ptx::bulk_wait<0>();
    wait_for_previous_kernel();  // for those after this one: a head's beginning itself depends on none
    // For the piece after this one, whose CTA has a higher number and waits.
    if (kHandsOn && p.marks && piece.end < order.segments) {
      if constexpr (kNormalized) last.join(state);
      state.join();
      const int64_t segment = int64_t{1} * handed_state() * p.handed + piece.end - 1;
      store_block_of_segment(p.states, state.before, segment, block, kBlocks, place);
      if constexpr (kNormalized)
        each_of_column(
            place, [&](int half, int row) { p.vectors[(segment * kBlocks + block) * 64 + row] = last.before[half]; });
      __threadfence();
      __syncwarp();
      ptx::store_release_if(lane == 0, mark(block), 1);
    }
    if (!p.last || piece.end < order.segments) return;
    store_block(p.last, head, block, tile, p.rows, p.columns, stride, place, [&](int i) { return state.value(i); });
    if constexpr (kNormalized) {
      if (tile == 0)
        store_last_column(p.last, head, block, p.rows, p.columns, place, [&](int i) { return last.value(state, i); });
    }
  }

  /// P of a chunk, issued.
  __device__ __forceinline__ void issue_scores(float (&scores)[32], const char* tiles) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      issue_product<Element, ptx::Major::kK, ptx::Major::kK>(scores, tiles + i * kPanel,
                                                             tiles + Shared::kKey + i * kPanel, i > 0);
  }

  __device__ __forceinline__ void weigh(float (&scores)[32], int stage) const {
    if constexpr (kGated) weigh_scores(scores, gates(stage), p.scale, {warp, lane});
    else weigh_scores(scores, {warp, lane});
  }
};

template <typename Element, bool kGated, int kBlocks, Normalizer kNormalizer, int kReaders>
__global__ void __launch_bounds__(ForwardShared<kBlocks, kReaders>::kMostThreads,
                                  ForwardShared<kBlocks, kReaders>::kTogether)
    sweep_forward(const __grid_constant__ StateForwardArguments p) {
  using Shared = ForwardShared<kBlocks, kReaders>;
  extern __shared__ __align__(1024) char memory[];
  const int group = threadIdx.x / kComputing;
  using Call = Forward<Element, kGated, kBlocks, kNormalizer, kReaders>;
  const int heads = p.batch * p.heads, cut_heads = heads - p.whole_heads;
  int unit = static_cast<int>(blockIdx.x) / p.tiles;
  // Pieces that others wait for come first: of two CTAs of a multiprocessor the earlier one is faster. But for a normaliser's forward, which is 3 µs of 129
  // slower so.
  if (Call::kHandsOn && !Call::kDividesRows && p.marks && unit < heads)
    unit += unit < cut_heads ? p.whole_heads : -cut_heads;
  const int cut = unit - p.whole_heads, head = cut < 0 ? unit : p.whole_heads + cut % cut_heads;
  const SegmentOrder order(p.length, false, kChunksOfSegment<kBlocks>);
  const Piece piece = cut < 0        ? Piece(order, 0, 1)
                      : p.second > 0 ? Piece::of_two(order, cut / cut_heads, p.second)
                                     : Piece(order, cut / cut_heads, p.pieces);
  const Call call{p,
                  memory,
                  static_cast<int>(threadIdx.x / 32 % kWarps),
                  static_cast<int>(threadIdx.x % 32),
                  head / p.heads,
                  head % p.heads,
                  head,
                  static_cast<int>(blockIdx.x % p.tiles),
                  order,
                  piece,
                  min(piece.end * order.each, order.chunks) - piece.begin * order.each,
                  kReaders > 1 ? ptx::in_uniform_register(group - 1) : 0};
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    auto& small = call.small();
    for (int i = 0; i < p.stages; ++i) {
      ptx::mbarrier_init(&small.full[i], kGated ? 1 + kArrivalsOfAWarp : 1);
      ptx::mbarrier_init(&small.empty[i], (Shared::kStateWarps + kWarps) * kArrivalsOfAWarp);
      if constexpr (Call::kWeighted) {
        ptx::mbarrier_init(&small.values_full[i], 1);
        ptx::mbarrier_init(&small.values_empty[i], kWarps * kArrivalsOfAWarp);  // after `empty` of the same stage
      }
    }
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(&small.state_full[i], Shared::kStateWarps * kArrivalsOfAWarp);
      ptx::mbarrier_init(&small.state_empty[i], kWarps * kArrivalsOfAWarp);
    }
    for (uint64_t& barrier : small.grad_full) ptx::mbarrier_init(&barrier, 1);
    ptx::mbarrier_init(&small.rows_full, kWarps * kArrivalsOfAWarp);
    ptx::mbarrier_init(&small.rows_empty, 1);
    ptx::mbarrier_init_fence();
  }
  if constexpr (kNormalizer != Normalizer::kNone) {
    if (threadIdx.x < kChunk) store_parts<Element>(call.small().ones, threadIdx.x, 1.0f);
    if (Call::kPanels && threadIdx.x < kComputing) store_ones<Element>(call.ones_panel(), threadIdx.x);
    ptx::fence_async_shared();
  }
  __syncthreads();
  if (group == 0) {
    change_registers<Shared::kRegisters, Shared::kLoadRegisters>();
    if (threadIdx.x < 32) call.load();
    else if constexpr (kGated) call.prepare_gates_of_chunks(ptx::in_uniform_register(threadIdx.x / 32) - 1);
  } else if (group <= kReaders) {
    change_registers<Shared::kRegisters, Shared::kReadRegisters>();
    if constexpr (kReaders > 1) read_in_turn(call);
    else if constexpr (Call::kHoldsPlace) read_weighted(call.with_held_place());
    else if constexpr (Call::kWeighted) read_weighted(call);
    else read_plain(call);
  } else {
    change_registers<Shared::kRegisters, Shared::kStateRegisters>();
    call.update_state(Call::kHoldsPlace ? 0 : group - 1 - kReaders);
  }
}

}  // namespace lethe::matrix_state
