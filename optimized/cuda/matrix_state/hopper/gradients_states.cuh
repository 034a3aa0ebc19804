#pragma once
// The gradients' states: S of each chunk, computed again from the one before its segment, and R, the gradient of the state after the chunk.

#include "optimized/cuda/matrix_state/hopper/gradients_divided.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_shared.cuh"
#include "optimized/cuda/ptx/publish.cuh"

namespace lethe::matrix_state {

/// A warpgroup: S of every chunk, times the scale where there are no gates.
template <typename Call>
__device__ __forceinline__ void rebuild_states(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  constexpr bool kGated = Call::kGated;
  constexpr int kBlocks = Call::kBlocks;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int stride = p.columns + Call::kNormalized;
  float state[kBlocks][32];
  [[maybe_unused]] StateColumn last[kBlocks];  // in `sum`
  ptx::RingPosition at;
  for (int s = call.piece.begin; s < call.piece.end; ++s) {
    const int count = call.order.count(s), in_time = call.order.segments - 1 - s;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (in_time == 0) {
        load_block(state[block], p.initial, call.head, block, call.column_tile(), p.rows, p.columns, stride, place);
        if constexpr (Call::kNormalized)
          load_last_column(last[block].sum, p.initial, call.head, block, p.rows, p.columns, place);
      } else {
        const int64_t of_tile = call.column_tile() * (p.batch * p.heads) + call.head,
                      segment = of_tile * (call.order.segments - 1) + in_time - 1;
        load_block_of_segment(state[block], p.states, segment, block, kBlocks, place);
        if constexpr (Call::kNormalized)
          load_column_of_segment(last[block].sum, p.vectors, segment, block, kBlocks, place);
      }
    }
    for (int m = 0; m < count; ++m) {
      const int slot = call.slot_of(s, m);
      ptx::mbarrier_wait(&small.state_empty[slot], call.parity_of(s, slot) ^ 1);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float scale = kGated ? 1.0f : p.scale;
        float unit = 1.0f;
        if constexpr (Call::kHalf) {
          unit = power_of_two_below(largest_of_warp(largest_of(state[block])) * fabsf(scale));
          if (call.lane == 0) small.state_units[slot][kWarps * block + call.warp] = unit;
        }
        uint32_t packed[16];
        pack_sums<Element>(packed, state[block], scale * reciprocal_of_power(unit));
        store_packed(ptx::shared_address(call.state(slot) + block * kPanel), packed, place);
        if constexpr (Call::kNormalized)
          each_of_column(place, [&](int half, int row) {
            call.columns().states[slot][64 * block + row] = scale * last[block].sum[half];
          });
      }
      ptx::fence_async_shared();
      arrive_warp(&small.state_full[slot], call.lane);
      if (m + 1 == count) break;
      ptx::mbarrier_wait(&small.rebuild_full[at.index], at.parity);
      const GatesByTime& gates = call.rebuild_gates(at.index);
      const char* const tiles = call.rebuild_stage(at.index);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if constexpr (kGated) {
#pragma unroll
          for (int i = 0; i < 32; ++i) state[block][i] *= gates.total;
        }
        const auto add = [&](auto&& column) {
          add_to_state<Element, kGated ? Weights::kGates : Weights::kNone, 4 / kBlocks>(
              state[block], tiles + block * kPanel, tiles + Shared::kState, gates.write, 1.0f, place, column);
        };
        if constexpr (Call::kNormalized) {
          if constexpr (kGated) last[block].forget(gates.total);
          ColumnProduct<Element> product(call.columns().ones);
          add(product);
          last[block].add(product, 1.0f);
        } else {
          add(NoColumn{});
        }
      }
      arrive_warp(&small.rebuild_empty[at.index], call.lane);
      at.advance(Shared::kRebuildStages);
    }
  }
}

/// A lane's share of ⟨S, R⟩ of a warp's rows, of S in 16 bits.
template <typename Element>
__device__ __forceinline__ float product_of_states(const float (&grad)[32], uint32_t state, Place at) {
  float even = 0.0f, odd = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4];
    load_left(a, state, k, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(a[i]);
      even = fmaf(x.x, grad[8 * k + 2 * i], even);
      odd = fmaf(x.y, grad[8 * k + 2 * i + 1], odd);
    }
  }
  return even + odd;
}

/// R of a warpgroup. Of one block the sum of a segment is apart, so that pieces begin with the same bits (State); of two R is one sum, and a piece
/// begins with what head_states summed in the same order.
template <bool kGated, int kBlocks>
struct GradState {
  float running[kBlocks][32];

  __device__ __forceinline__ explicit GradState(float) {}
  template <typename Load>
  __device__ __forceinline__ void load(Load&& load) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) load(running[block], block);
  }
  __device__ __forceinline__ void join() {}
  /// After join(): what a piece begins with.
  __device__ __forceinline__ const float (&joined(int block) const)[32] { return running[block]; }
  __device__ __forceinline__ float value(int block, int i) const { return running[block][i]; }
  __device__ __forceinline__ void forget(float total) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
#pragma unroll
      for (int i = 0; i < 32; ++i) running[block][i] *= total;
  }
  __device__ __forceinline__ float (&sum(int block))[32] { return running[block]; }
  __device__ __forceinline__ float column_value(const StateColumn& column, int half) const { return column.sum[half]; }
  __device__ __forceinline__ void join_column(StateColumn&) const {}
  static __device__ __forceinline__ float (&loaded(StateColumn& column))[2] { return column.sum; }
  static constexpr Weights kWeights = kGated ? Weights::kGates : Weights::kScale;
};

template <bool kGated>
struct GradState<kGated, 1> {
  State<kGated> state;

  __device__ __forceinline__ explicit GradState(float scale) : state(scale) {}
  template <typename Load>
  __device__ __forceinline__ void load(Load&& load) {
    load(state.before, 0);
    state.clear_sum();
  }
  __device__ __forceinline__ void join() { state.join(); }
  __device__ __forceinline__ const float (&joined(int) const)[32] { return state.before; }
  __device__ __forceinline__ float value(int, int i) const { return state.value(i); }
  __device__ __forceinline__ void forget(float total) { state.forget(total); }
  __device__ __forceinline__ float (&sum(int))[32] { return state.sum; }
  __device__ __forceinline__ float column_value(const StateColumn& column, int half) const {
    return column.value(state, half);
  }
  __device__ __forceinline__ void join_column(StateColumn& column) const { column.join(state); }
  static __device__ __forceinline__ float (&loaded(StateColumn& column))[2] { return column.before; }
  static constexpr Weights kWeights = kGated ? Weights::kGates : Weights::kNone;
};

/// A warpgroup: R of every chunk, the gradient of the initial state, and what ⟨S, R⟩ gives to d log f.
template <typename Call>
__device__ __forceinline__ void sweep_grad_states(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using State = GradState<Call::kGated, Call::kBlocks>;
  constexpr bool kGated = Call::kGated;
  constexpr int kBlocks = Call::kBlocks;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int stride = p.columns + Call::kNormalized;
  State state(p.scale);
  [[maybe_unused]] StateColumn last[kBlocks];
  if constexpr (Call::kHandsOn) {
    while (p.marks && call.piece.begin > 0 && !__all_sync(kAllLanes, ptx::load_acquire(call.mark()))) __nanosleep(100);
  }
  state.load([&](float(&to)[32], int block) {
    float(&column)[2] = State::loaded(last[block]);
    if (call.piece.begin == 0) {
      load_block(to, p.grad_last, call.head, block, call.column_tile(), p.rows, p.columns, stride, place);
      if constexpr (Call::kNormalized)
        load_last_column(column, p.grad_last, call.head, block, p.rows, p.columns, place);
    } else {
      const int64_t segment = int64_t{1} * call.handed_state() * p.handed + call.piece.begin - 1;
      load_block_of_segment(to, p.grad_states, segment, block, kBlocks, place);
      if constexpr (Call::kNormalized) load_column_of_segment(column, p.grad_vectors, segment, block, kBlocks, place);
    }
  });
  const auto join = [&] {
    if constexpr (Call::kNormalized) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) state.join_column(last[block]);
    }
    state.join();
  };
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto& chunk) {
    if (chunk.begins) join();
    ptx::mbarrier_wait(&small.grad_state_empty, parity ^ 1);
    float inverse = call.grad_state_factor();
    if constexpr (Call::kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
#pragma unroll
        for (int i = 0; i < 32; ++i) x = fmaxf(x, fabsf(state.value(block, i)));
      x = largest_of_warp(x);
      if (call.lane == 0) small.largest[call.warp] = x;
      ptx::named_barrier_sync(1, kComputing);
      const float* all = small.largest;
      const float unit = power_of_two_below(fmaxf(fmaxf(all[0], all[1]), fmaxf(all[2], all[3])));
      inverse = reciprocal_of_power(unit);
      if (call.warp == 0 && call.lane == 0) small.grad_state_unit = unit;
    }
    const auto value_of = [&](float(&now)[32], int block) {
#pragma unroll
      for (int i = 0; i < 32; ++i) now[i] = state.value(block, i);
    };
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float now[32];
      value_of(now, block);
      uint32_t packed[16];
      pack_sums<Element>(packed, now, inverse);
      store_packed(ptx::shared_address(call.grad_state() + block * kPanel), packed, place);
      if constexpr (Call::kNormalized)
        each_of_column(place, [&](int half, int row) {
          const float x = state.column_value(last[block], half);
          if constexpr (Call::kOuterInProducts) store_outer<Element>(call.divided().grad_state, row, x);
          else call.columns().grad_state[64 * block + row] = x;
        });
    }
    ptx::fence_async_shared();
    arrive_warp(&small.grad_state_full, call.lane);

    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    const auto& gates = call.gates(at.index);
    const char* const tiles = call.stage(at.index);
    if constexpr (kGated) {
      ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
      float product = 0.0f;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        float now[32];
        value_of(now, block);
        product +=
            product_of_states<Element>(now, ptx::shared_address(call.state(chunk.slot) + block * kPanel), place) *
            (Call::kHalf ? small.state_units[chunk.slot][kWarps * block + call.warp] : 1.0f);
        if constexpr (Call::kNormalized)
          each_of_column(place, [&](int half, int row) {
            product += call.columns().states[chunk.slot][64 * block + row] * state.column_value(last[block], half);
          });
      }
      for (int step = 1; step < 32; step *= 2) product += __shfl_xor_sync(kAllLanes, product, step);
      if (call.lane == 0) call.crossings(at.index).states[call.warp] = product * gates.total * gates.entry;
      arrive_warp(&small.state_empty[chunk.slot], call.lane);
      if constexpr (!Call::kDivides) state.forget(gates.total);
    }
    if constexpr (Call::kDivides) {
      ptx::mbarrier_wait(&call.divided().full[at.index], at.parity);
      add_divided<Element>(state.state, last[0], tiles + Shared::kQuery, tiles + Shared::kGradValues, gates,
                           call.columns().grad_normalizer[at.index], place);
    }
#pragma unroll
    for (int block = 0; block < (Call::kDivides ? 0 : kBlocks); ++block) {
      const auto add = [&](auto&& column) {
        add_to_state<Element, State::kWeights, 4 / kBlocks>(state.sum(block), tiles + Shared::kQuery + block * kPanel,
                                                            tiles + Shared::kGradValues, gates.write, p.scale, place,
                                                            column);
      };
      if constexpr (Call::kNormalized) {
        const auto& of_chunk = call.columns().grad_normalizer[at.index];
        if constexpr (kGated) last[block].forget(gates.total);
        ColumnProduct<Element> product(of_chunk.values);
        add(product);
        last[block].add(product, of_chunk.unit);
      } else {
        add(NoColumn{});
      }
    }
    arrive_warp(&small.empty[at.index], call.lane);
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  // For the piece after this one, whose CTA has a higher number and waits.
  if (Call::kHandsOn && p.marks && call.piece.end < call.order.segments) {
    join();
    const int64_t segment = int64_t{1} * call.handed_state() * p.handed + call.piece.end - 1;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      store_block_of_segment(p.grad_states, state.joined(block), segment, block, kBlocks, place);
      if constexpr (Call::kNormalized)
        each_of_column(place, [&](int half, int row) {
          p.grad_vectors[(segment * kBlocks + block) * 64 + row] = State::loaded(last[block])[half];
        });
    }
    __threadfence();
    __syncwarp();
    ptx::store_release_if(call.lane == 0, call.mark(), 1);
  }
  if (!p.grad_initial || call.piece.end < call.order.segments) return;
  const float factor = !kGated ? 1.0f : call.gate()[0] < -104.0f ? 0.0f : expf(call.gate()[0]);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    store_block(p.grad_initial, call.head, block, call.column_tile(), p.rows, p.columns, stride, place,
                [&](int i) { return state.value(block, i) * factor; });
    if constexpr (Call::kNormalized)
      store_last_column(p.grad_initial, call.head, block, p.rows, p.columns, place,
                        [&](int half) { return state.column_value(last[block], half) * factor; });
  }
}

}  // namespace lethe::matrix_state
