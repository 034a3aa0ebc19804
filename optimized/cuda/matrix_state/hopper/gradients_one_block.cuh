#pragma once
// The gradients of a state of at most 64 rows: one warpgroup computes P and dP, one S and dq, one dk and dv. These three are stored from shared memory that
// no product reads any more, so that operands are free as soon as they are read.

#include "optimized/cuda/matrix_state/hopper/gradients_pairs.cuh"
#include "optimized/cuda/matrix_state/hopper/gradients_states.cuh"

namespace lethe::matrix_state {

/// A warpgroup: P and dP of every chunk, in 16 bits to shared memory.
template <typename Call>
__device__ __forceinline__ void sweep_pairs(const Call& call) {
  using Element = typename Call::Element;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto&) {
    float scores[32], grads[32];
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    compute_pairs(call, at.index, scores, grads, [] {});
    arrive_warp(&small.empty[at.index], call.lane);
    ptx::mbarrier_wait(&small.pairs_empty, parity ^ 1);
    const PairUnits units = pair_units(call, scores, grads);
    uint32_t packed[16];
    pack_sums<Element>(packed, grads, reciprocal_of_power(units.grad));
    store_packed(ptx::shared_address(call.pairs()), packed, place);
    pack_sums<Element>(packed, scores, reciprocal_of_power(units.score));
    store_packed(ptx::shared_address(call.scores()), packed, place);
    ptx::fence_async_shared();
    arrive_warp(&small.pairs_full, call.lane);
    at.advance(Call::Shared::kStages);
    parity ^= 1;
  });
}

/// Sums whose first product overwrites them.
__device__ __forceinline__ void start_sums(float (&sum)[32]) {
  ptx::undefined(sum);
  ptx::fence_registers(sum);
}

/// A warpgroup: S of every chunk, a segment ahead, and dq. A chunk's dq leaves from the place of its S, which nothing else reads any more, and then the S
/// of a chunk of the next segment takes it.
template <typename Call>
__device__ __forceinline__ void sweep_states_and_queries(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  constexpr bool kGated = Call::kGated, kHalf = Call::kHalf;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int i0 = 16 * call.warp + call.lane / 4;
  RebuiltState<Call> rebuilt(call);
  int segment = call.piece.begin, rebuilt_chunks = 0;  // of that segment
  ptx::RingPosition at;
  uint32_t parity = 0;
  bool started = false;
  call.each_chunk([&](const auto& chunk) {
    // A segment's states are all there before its first chunk by this sweep; the next segment's come one after each chunk.
    const bool whole = !started || chunk.begins;
    started = true;
    const int left = segment < call.piece.end ? call.order.count(segment) - rebuilt_chunks : 0;
    for (int steps = whole ? left : min(left, 1); steps > 0; --steps, ++rebuilt_chunks) {
      if (rebuilt_chunks == 0) rebuilt.load(segment);
      else rebuilt.update();
      if (call.lane == 0) ptx::bulk_wait_read<0>();  // dq of the slot's last chunk has left
      __syncwarp();
      rebuilt.store(segment, rebuilt_chunks);
    }
    if (whole) {
      ++segment;
      rebuilt_chunks = 0;
    }

    const ChunkGates& gates = call.gates(at.index);
    const char *const tiles = call.stage(at.index), *const key = tiles + Shared::kKey,
                      *const grad_values = tiles + Shared::kGradValues;
    float grad_unit = 1.0f, out[32];
    const auto issue_of_state = [&] {
      start_sums(out);
      ptx::wgmma_fence();
      issue_product<Element, Major::kK, Major::kK>(out, grad_values, call.state(chunk.slot), false);
    };
    const auto issue_pairs = [&] {
      issue_product<Element, Major::kMN, Major::kMN>(out, call.pairs(), key, true);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
    };
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
    // Where nothing is scaled or added between the products with S and with pairs, they are one batch.
    if constexpr (!kGated && !kHalf && !Call::kNormalized) {
      ptx::mbarrier_wait(&small.pairs_full, parity);
      issue_of_state();
      issue_pairs();
      arrive_warp(&small.state_empty[chunk.slot], call.lane);
    } else {
      issue_of_state();
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out);
      if constexpr (kHalf) {
#pragma unroll
        for (int i = 0; i < 32; ++i) out[i] *= small.state_units[chunk.slot][i / 8];
      }
      if constexpr (Call::kNormalized) {
        const float* const x = call.grad_normalizer(at.index);
        add_outer_product(out, x[i0], x[i0 + 8], call.columns().states[chunk.slot], call.lane);
      }
      arrive_warp(&small.state_empty[chunk.slot], call.lane);
      // E: the gates after the chunk's first token, which R's update has with the scale, and that one.
      const auto factor = [&](int row) { return kGated ? gates.write[row] * gates.entry : 1.0f; };
      const float near = factor(i0), far = factor(i0 + 8);
      if constexpr (kGated) {
        float dot[2] = {0.0f, 0.0f};
        add_dots<Element>(dot, out, tiles + Shared::kQuery, place);
        store_dots(call.crossings(at.index).queries, {near * dot[0], far * dot[1]}, place);
      }
      ptx::mbarrier_wait(&small.pairs_full, parity);
      if constexpr (kHalf) grad_unit = small.grad_unit;
      scale_rows(out, near * reciprocal_of_power(grad_unit), far * reciprocal_of_power(grad_unit));
      ptx::fence_registers(out);
      ptx::wgmma_fence();
      issue_pairs();
    }
    arrive_warp(&small.pairs_empty, call.lane);
    arrive_warp(&small.empty[at.index], call.lane);
    uint32_t packed[16];
    pack_sums<Element>(packed, out, grad_unit);
    ptx::mbarrier_wait(&small.state_empty[chunk.slot], chunk.parity);  // all warps have read S
    store_rows_by_map(call.state(chunk.slot), packed, p.maps[4], 0, chunk.first, call.b, call.h, place);
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (call.lane == 0) ptx::bulk_wait<0>();
}

/// A warpgroup: dk and dv of every chunk.
template <typename Call>
__device__ __forceinline__ void sweep_keys(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  constexpr bool kGated = Call::kGated, kHalf = Call::kHalf, kScaled = kGated || kHalf;
  const auto& p = call.p;
  auto& small = call.small();
  const Place place{call.warp, call.lane};
  const int j0 = 16 * call.warp + call.lane / 4;
  // A result's rows leave from a place of their own, or dk's and dv's from one: the last store from there has been read.
  const auto store = [&](const float(&sum)[32], float unit, int tile, const CUtensorMap& map, int64_t first) {
    uint32_t packed[16];
    pack_sums<Element>(packed, sum, unit);
    if (call.lane == 0) ptx::bulk_wait_read<Shared::kKeyOut == Shared::kOut ? 0 : 1>();
    __syncwarp();
    store_rows_by_map(call.memory + tile, packed, map, 0, first, call.b, call.h, place);
  };
  ptx::RingPosition at;
  uint32_t parity = 0;
  call.each_chunk([&](const auto& chunk) {
    const ChunkGates& gates = call.gates(at.index);
    const char *const tiles = call.stage(at.index), *const query = tiles + Shared::kQuery,
                      *const key = tiles + Shared::kKey, *const value = tiles + Shared::kValue,
                      *const grad_values = tiles + Shared::kGradValues;
    float score_unit = 1.0f, grad_unit = 1.0f, out_value[32], out_key[32];
    const auto issue_value_of_state = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out_value, key, call.grad_state(), false);
    };
    const auto issue_value_of_pairs = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out_value, call.scores(), grad_values, true);
    };
    const auto issue_key_of_state = [&](float(&sum)[32]) {
      issue_product<Element, Major::kK, Major::kK>(sum, value, call.grad_state(), false);
    };
    const auto issue_key_of_pairs = [&] {
      issue_product<Element, Major::kK, Major::kMN>(out_key, call.pairs(), query, true);
    };
    const auto store_key = [&] { store(out_key, grad_unit, Shared::kKeyOut, p.maps[5], chunk.first); };
    const auto release_operands = [&] {
      arrive_warp(&small.pairs_empty, call.lane);
      arrive_warp(&small.empty[at.index], call.lane);
    };
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.grad_state_full, parity);
    if constexpr (kScaled) {
      float of_state[32];
      start_sums(of_state);
      ptx::wgmma_fence();
      issue_key_of_state(of_state);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(of_state);
      const float unit = kHalf ? small.grad_state_unit : 1.0f;
      float read = kGated ? gates.read[j0] : 1.0f, read_far = kGated ? gates.read[j0 + 8] : 1.0f;
      const float near = unit * read, far = unit * read_far;
      if constexpr (
          Call::
              kNormalized) {  // the column has no unit: where R is 0 and the column isn't, its reciprocal would overflow
        if constexpr (kHalf) {
#pragma unroll
          for (int i = 0; i < 32; ++i) of_state[i] *= unit;
        }
        add_outer_product(of_state, 1.0f, 1.0f, call.columns().grad_state, call.lane);
      } else {
        read = near;
        read_far = far;
      }
      ptx::mbarrier_wait(&small.pairs_full, parity);
      if constexpr (kHalf) {
        score_unit = small.score_unit;
        grad_unit = small.grad_unit;
      }
      scale_rows_to(out_key, of_state, read * reciprocal_of_power(grad_unit),
                    read_far * reciprocal_of_power(grad_unit));
      ptx::fence_registers(out_key);
      ptx::wgmma_fence();
      issue_key_of_pairs();
      ptx::wgmma_commit();
      if constexpr (kGated) {
        float dot[2] = {0.0f, 0.0f};
        add_dots<Element>(dot, of_state, key, place);
        store_dots(call.crossings(at.index).keys, {read * dot[0], read_far * dot[1]}, place);
      }
      start_sums(out_value);
      ptx::wgmma_fence();
      issue_value_of_state();
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      ptx::fence_registers(out_key);
      store_key();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out_value);
      arrive_warp(&small.grad_state_empty, call.lane);
      scale_rows(out_value, near * reciprocal_of_power(score_unit), far * reciprocal_of_power(score_unit));
      ptx::fence_registers(out_value);
      ptx::wgmma_fence();
      issue_value_of_pairs();
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out_value);
      release_operands();
    } else {
      ptx::mbarrier_wait(&small.pairs_full, parity);
      start_sums(out_value);
      start_sums(out_key);
      ptx::wgmma_fence();
      issue_value_of_state();
      issue_value_of_pairs();
      issue_key_of_state(out_key);
      issue_key_of_pairs();
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(out_value);
      ptx::fence_registers(out_key);
      if constexpr (Call::kNormalized) add_outer_product(out_key, 1.0f, 1.0f, call.columns().grad_state, call.lane);
      arrive_warp(&small.grad_state_empty, call.lane);
      release_operands();
      store_key();
    }
    store(out_value, score_unit, Shared::kOut, p.maps[6], chunk.first);
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  if (call.lane == 0) ptx::bulk_wait<0>();
}

}  // namespace lethe::matrix_state
