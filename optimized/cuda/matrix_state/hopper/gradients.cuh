#pragma once
// All gradients of gated_state for a state of at most 128 × 64 or 128 × 128 (launch.hpp; FusedArguments has the equations): a CTA sweeps a piece of a head in reverse time
// (segments.cuh). S is what the forward left (kept_states.cuh), which warp 2 loads, without warpgroup 1; or computed again: a chunk's key and value
// are then read twice, the first time, up to a segment earlier, for the states before the segment's chunks.
//
//   warp 0         of two tiles of columns: what their CTAs tell each other (gradients_tiles.cuh)
//   warp 1         d log f of the chunks that are done
//   warp 2         key, value and gates for S
//   warp 3         tiles and gates
//   warpgroup 1    S of every chunk
//   warpgroup 2    R, rounded to 16 bits; R = E_C R + (q·D)ᵀ dO; ⟨S, R⟩
//   warpgroup 3    P = K Qᵀ, dP = V dOᵀ, weighted
//   warpgroup 4    dq = dPᵀ K + E dO Sᵀ; dk = dP Q + E V Rᵀ; dv = P dO + E K R
//
// Above 64 rows warpgroup 3 computes dv (gradients_two_blocks.cuh).
//
// With a normaliser dO is that over z·q already, and every dP of a query has the gradient of z·q besides; z and its gradient are a column of S and R
// apart. With a gate a token and where S is what the forward left, warpgroup 3 divides and computes that gradient, its pairs queries by keys
// (gradients_divided.cuh).
//
// float16: R, P and dP of a chunk and 16 rows of S are each divided by a power of two.

#include "optimized/cuda/matrix_state/hopper/gradients_divided_outputs.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_one_block.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_states.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_two_blocks.cuh"
#include "optimized/cuda/matrix_state/hopper/kept_states.cuh"

namespace lethe::matrix_state {

/// A warp: tiles and gates of every chunk in reverse time.
template <typename Call>
__device__ __forceinline__ void load_chunks(const Call& call) {
  using Shared = typename Call::Shared;
  constexpr bool kGated = Call::kGated;
  constexpr int kBlocks = Call::kBlocks;
  const auto& p = call.p;
  constexpr bool kWithColumn = Call::kNormalized && !Call::kDivides;
  using Gates = typename Shared::Gates;
  auto& small = call.small();
  // In uniform registers where the call divides; others have registers enough.
  [[maybe_unused]] int heads[4] = {};
  if constexpr (Call::kDivides) {
    const Operand* const operands[4] = {&p.query, &p.key, &p.value, &p.grad_values};
#pragma unroll
    for (int i = 0; i < 4; ++i) heads[i] = ptx::in_uniform_register(head_of(*operands[i], call.h));
  }
  ptx::RingPosition at;
  call.each_chunk([&](const auto& chunk) {
    [[maybe_unused]] float2 column{};
    if constexpr (kWithColumn)
      column = load_column(p.grad_normalizer, call.head, call.order.chunks, chunk.first, call.lane);
    ptx::mbarrier_wait(&small.empty[at.index], at.parity ^ 1);
    uint64_t* const full = &small.full[at.index];
    if (Call::kDivides ? ptx::elect() : call.lane == 0) {
      char* const to = call.stage(at.index);
      ptx::mbarrier_arrive_expect(full, Shared::kStage + (kGated ? sizeof(Gates) : 0));
      if constexpr (kGated)
        ptx::load_run(&call.gates(at.index), &call.gates_in_reverse(chunk.first), sizeof(Gates), full);
      const auto load = [&]<int kPanels>(int i, const Operand& of, char* tile, int column = 0) {
        load_panels<kPanels>(tile, p.maps[i], full, column, chunk.first, call.b,
                             Call::kDivides ? heads[i] : head_of(of, call.h));
      };
      load.template operator()<kBlocks>(1, p.key, to + Shared::kKey);
      load.template operator()<kBlocks>(0, p.query, to + Shared::kQuery);
      load.template operator()<1>(2, p.value, to + Shared::kValue, call.column());
      load.template operator()<1>(3, p.grad_values, to + Shared::kGradValues, call.column());
    }
    if constexpr (kWithColumn) {
      auto& to = call.columns().grad_normalizer[at.index];
      *reinterpret_cast<float2*>(&to.whole[2 * call.lane]) = column;
      prepare_column<typename Call::Element>(to.values, to.unit, column, call.lane);
      ptx::fence_async_shared();
      arrive_warp(full, call.lane);
    }
    at.advance(Shared::kStages);
  });
}

/// A warp: d log f of every chunk, when its stage is free again and before it is filled.
template <typename Call>
__device__ __forceinline__ void store_gate_gradients(const Call& call) {
  const auto& p = call.p;
  int64_t first_done = -1;  // of the next chunk: segments follow each other in reverse, as their chunks do
  const auto begin = [&](const auto& chunk) { first_done = chunk.first; };
  finish_chunks(call, begin, [&](const FusedCrossings& crossings, auto wait) {
    // Of tokens beyond the last that one's: where lanes branch apart around a load, no loop of the kernel has its counters in uniform registers.
    const auto is_cut_at = [&](int64_t token) {
      return is_cut(load_global(call.gate() + min(token, p.length - 1) * p.gate.token_stride));
    };
    const Cuts cuts{is_cut_at(first_done + 2 * call.lane), is_cut_at(first_done + 2 * call.lane + 1)};
    if constexpr (Call::kTwoTiles) {
      store_gate_gradient_of_tile(call, crossings, cuts, first_done, wait);
    } else {
      wait();
      store_gate_gradient(crossings, cuts, p.grad_gate + (call.b * p.length + first_done) * p.heads + call.h, p.heads,
                          p.length - first_done, call.lane);
    }
    first_done -= kChunk;
  });
  publish_gate_gradient(call, call.done_at_end());
}

/// A warp: key, value and gates of every chunk by time, but the last one of each segment, for S of the next chunk.
template <typename Call>
__device__ __forceinline__ void load_rebuild_chunks(const Call& call) {
  using Shared = typename Call::Shared;
  constexpr bool kGated = Call::kGated;
  constexpr int kBlocks = Call::kBlocks;
  const auto& p = call.p;
  auto& small = call.small();
  ptx::RingPosition at;
  for (int s = call.piece.begin; s < call.piece.end; ++s)
    for (int m = 0; m + 1 < call.order.count(s); ++m, at.advance(Shared::kRebuildStages)) {
      const int64_t first = static_cast<int64_t>(call.order.begin(s) + m) * kChunk;
      ptx::mbarrier_wait(&small.rebuild_empty[at.index], at.parity ^ 1);
      uint64_t* const full = &small.rebuild_full[at.index];
      if (call.lane == 0) {
        char* const to = call.rebuild_stage(at.index);
        ptx::mbarrier_arrive_expect(full, Shared::kRebuildStage + (kGated ? sizeof(GatesByTime) : 0));
        if constexpr (kGated)
          ptx::load_run(&call.rebuild_gates(at.index), &call.prepared_gates(first).by_time, sizeof(GatesByTime), full);
        load_tile_of<kBlocks>(to, p.maps[1], p.key, full, 0, first, call.b, call.h);
        load_tile_of<1>(to + Shared::kState, p.maps[2], p.value, full, call.column(), first, call.b, call.h);
      }
    }
}

template <typename Element, bool kGated, int kBlocks, bool kNormalized, bool kKept, bool kTwoTiles = false>
__global__ void __launch_bounds__(GradientsShared<kBlocks, kNormalized, kKept>::kThreads, 1)
    sweep_gradients(const __grid_constant__ StateGradientArguments p) {
  using Call = Gradients<Element, kGated, kBlocks, kNormalized, kKept, kTwoTiles>;
  using Shared = typename Call::Shared;
  constexpr bool kDivides = Call::kDivides;
  extern __shared__ __align__(1024) char memory[];
  const int group_of_thread =
                threadIdx.x / kComputing + (kKept && threadIdx.x >= kComputing),  // where S is kept, none has group 1
      warp = threadIdx.x / 32 % kWarps;
  // In a uniform register, else no warpgroup's loop would have its own in those.
  const int group = kDivides ? ptx::in_uniform_register(group_of_thread) : group_of_thread;
  const int heads = p.batch * p.heads, cut_heads = heads - p.whole_heads;
  int unit = static_cast<int>(blockIdx.x) / (kTwoTiles ? 2 : 1);
  // Pieces that others wait for come first, then whole heads, by the end of whose first round those have ended.
  if (kKept && p.marks && unit < heads) unit += unit < cut_heads ? p.whole_heads : -cut_heads;
  const int cut = unit - p.whole_heads, head = cut < 0 ? unit : p.whole_heads + cut % cut_heads;
  const SegmentOrder order(p.length, true, kChunksOfSegment<kBlocks>);
  // In uniform registers, as then loops' counters, addresses of barriers and descriptors are.
  Piece piece = cut < 0 ? Piece(order, 0, 1) : Piece(order, cut / cut_heads, p.pieces);
  piece.begin = ptx::in_uniform_register(piece.begin);
  piece.end = ptx::in_uniform_register(piece.end);
  const Call call{p,
                  memory,
                  kBlocks == 1 || kKept ? ptx::in_uniform_register(warp) : warp,  // else there are no registers for it
                  static_cast<int>(threadIdx.x % 32),
                  head / p.heads,
                  head % p.heads,
                  head,
                  order,
                  piece};
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    auto& small = call.small();
    const auto init = [](auto& barriers, int arrivals) {
      for (uint64_t& barrier : barriers) ptx::mbarrier_init(&barrier, arrivals);
    };
    constexpr int kArrivals = kWarps * kArrivalsOfAWarp;  // of a warpgroup
    // A copy's bytes, what is computed of the normaliser, and d log f of the stage's chunk before.
    init(small.full, 1 + ((kNormalized && !kDivides) + kGated) * kArrivalsOfAWarp);
    init(small.empty, 3 * kArrivals);
    init(small.rebuild_full, 1);
    init(small.rebuild_empty, kArrivals);
    // Where S was left, its copy, and units and z.
    init(small.state_full, kKept ? 1 + (call.kHalf || kNormalized) * kArrivalsOfAWarp : kArrivals);
    init(small.state_empty, (kDivides ? 3 : kGated ? 2 : 1) * kArrivals);
    if constexpr (kDivides) init(call.divided().full, kArrivals);
    for (uint64_t* barrier : {&small.grad_state_full, &small.grad_state_empty, &small.pairs_full, &small.pairs_empty})
      ptx::mbarrier_init(barrier, kArrivals);
    if constexpr (kTwoTiles) {
      init(call.tiles().stored, kArrivals);
      init(call.tiles().passed, kArrivalsOfAWarp);
    }
    ptx::mbarrier_init_fence();
  }
  if constexpr (kNormalized) {
    if (threadIdx.x < kChunk) store_parts<Element>(call.columns().ones, threadIdx.x, 1.0f);
    ptx::fence_async_shared();
  }
  __syncthreads();
  // Without gates and a normaliser tiles depend on no kernel before: copies begin while the last states are summed.
  if (kGated || kNormalized || group > 0) wait_for_previous_kernel();
  if (group == 0) {
    change_registers<Shared::kRegisters, Shared::kLoadRegisters>();
    if (call.warp == 3) {
      load_chunks(call);
    } else if (call.warp == 2) {
      if constexpr (kKept) load_kept_states(call);
      else load_rebuild_chunks(call);
    } else if (kGated && call.warp == 1) {
      if constexpr (kDivides) store_divided_gate_gradients(call);
      else store_gate_gradients(call);
    } else if (call.warp == 0) {
      if constexpr (kTwoTiles) call.is_first() ? publish_stored(call) : wait_for_first_tile(call);
    }
  } else if (group == 1) {
    if constexpr (!kKept) {
      change_registers<Shared::kRegisters, Shared::kStateRegisters>();
      rebuild_states(call);
    }
  } else if (group == 2) {
    change_registers<Shared::kRegisters, Shared::kGradStateRegisters>();
    sweep_grad_states(call);
  } else if (group == 3) {
    change_registers<Shared::kRegisters, Shared::kPairRegisters>();
    if constexpr (kDivides) sweep_divided_pairs(call);
    else if constexpr (kBlocks == 1) sweep_pairs(call);
    else sweep_pairs_and_values(call);
  } else {
    change_registers<Shared::kRegisters, Shared::kOutRegisters>();
    if constexpr (kDivides) sweep_divided_outputs(call);
    else if constexpr (kBlocks == 1) sweep_outputs(call);
    else sweep_queries_and_keys(call);
  }
}

}  // namespace lethe::matrix_state
