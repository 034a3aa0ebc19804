#pragma once
// dq, dk, dv and d log f where the gradients' kernel divides (gradients_divided.cuh). Each has sums of its own, so that all products with states are
// issued at once, and no product is waited for that has just been: dq's with pairs runs under dk's dot products, dk's and dv's under what dq loses
// along q. dv leaves under the next chunk's first products.

#include "optimized/cuda/matrix_state/hopper/gradients_divided.cuh"

namespace lethe::matrix_state {

/// What a lane's rows of dq have along q is taken away: exactly that is 0, since a query times a number has the same values. It is what rounding has
/// left, of dP most of all. `inverse_squares`: of the chunk's queries.
template <typename Element>
__device__ __forceinline__ void remove_along(float (&sum)[32], const char* query, const float* inverse_squares,
                                             Place at) {
  uint32_t q[4][4];
  float dot[2] = {0.0f, 0.0f}, factor[2];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    load_left(q[c], ptx::shared_address(query), c, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(q[c][i]);
      dot[i % 2] = fmaf(sum[8 * c + 2 * i], x.x, fmaf(sum[8 * c + 2 * i + 1], x.y, dot[i % 2]));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    factor[half] = -quad_sum(dot[half]) * inverse_squares[16 * at.block + at.lane / 4 + 8 * half];
#pragma unroll
  for (int c = 0; c < 4; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(q[c][i]);
      sum[8 * c + 2 * i] = fmaf(factor[i % 2], x.x, sum[8 * c + 2 * i]);
      sum[8 * c + 2 * i + 1] = fmaf(factor[i % 2], x.y, sum[8 * c + 2 * i + 1]);
    }
}

/// A warpgroup: dq, dk and dv of every chunk.
template <typename Call>
__device__ __forceinline__ void sweep_divided_outputs(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  using ptx::Major;
  constexpr bool kHalf = Call::kHalf;
  const auto& p = call.p;
  auto& small = call.small();
  auto& divided = call.divided();
  const Place place{call.warp, call.lane};
  const int i0 = 16 * call.warp + call.lane / 4;
  // The n-th of a chunk's results, dq, dk and dv, leaves from a place in turn, which the store before the last one has left.
  const auto send = [&](auto result, uint32_t parity, const uint32_t(&packed)[16], int64_t first) {
    constexpr int kResult = decltype(result)::value;
    const int tile = (parity + kResult) % 2 ? Shared::kKeyOut : Shared::kOut;
    if (call.lane == 0) ptx::bulk_wait_read<1>();
    __syncwarp();
    store_rows_by_map(call.memory + tile, packed, p.maps[4 + kResult], 0, first, call.b, call.h, place);
  };
  constexpr std::integral_constant<int, 0> kQueries{};
  constexpr std::integral_constant<int, 1> kKeys{};
  constexpr std::integral_constant<int, 2> kValues{};
  uint32_t values[16];  // dv of the chunk before, which begins at `values_first`
  int64_t values_first = -1;
  ptx::RingPosition at;
  uint32_t parity = 0;
  const auto send_values = [&] {
    if (values_first >= 0) send(kValues, parity ^ 1, values, values_first);
  };
  call.each_chunk([&](const auto& chunk) {
    const auto& gates = call.gates(at.index);
    const char *const tiles = call.stage(at.index), *const query = tiles + Shared::kQuery,
                      *const key = tiles + Shared::kKey, *const value = tiles + Shared::kValue,
                      *const grad_values = tiles + Shared::kGradValues;
    float of_query[32], of_key[32], of_value[32];
    [[maybe_unused]] uint32_t left[4], left_ones[4];
    const auto start = [](float(&sum)[32]) {
      ptx::undefined(sum);
      ptx::fence_registers(sum);
    };
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
    ptx::mbarrier_wait(&divided.full[at.index], at.parity);  // y
    if constexpr (Call::kOuterInProducts) {
      outer_left(left, divided.outer[at.index][i0], divided.outer[at.index][i0 + 8], call.lane);
      const uint32_t one = outer_parts<Element>(1.0f);
      outer_left(left_ones, one, one, call.lane);
    }
    start(of_query);
    ptx::wgmma_fence();
    issue_short_product<Element, Major::kK, Major::kK>(of_query, grad_values, call.state(chunk.slot), false);
    if constexpr (Call::kOuterInProducts) issue_outer<Element>(of_query, left, divided.states[chunk.slot]);
    ptx::wgmma_commit();
    ptx::mbarrier_wait(&small.grad_state_full, parity);
    start(of_key);
    start(of_value);
    ptx::wgmma_fence();
    issue_short_product<Element, Major::kK, Major::kK>(of_key, value, call.grad_state(), false);
    if constexpr (Call::kOuterInProducts) issue_outer<Element>(of_key, left_ones, divided.grad_state);
    ptx::wgmma_commit();
    issue_short_product<Element, Major::kK, Major::kMN>(of_value, key, call.grad_state(), false);
    ptx::wgmma_commit();
    send_values();

    const float read_state[2] = {gates.read_state[i0], gates.read_state[i0 + 8]},
                read[2] = {gates.read[i0], gates.read[i0 + 8]};
    ptx::mbarrier_wait(&small.pairs_full, parity);
    float score_unit = 1.0f, grad_unit = 1.0f, unit = 1.0f;
    if constexpr (kHalf) {
      score_unit = small.score_unit;
      grad_unit = small.grad_unit;
      unit = small.grad_state_unit;
    }
    const float inverse = reciprocal_of_power(grad_unit);
    ptx::wgmma_wait<2>();
    ptx::fence_registers(of_query);
    if constexpr (Call::kOuterInProducts) ptx::fence_registers(left);
    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < 32; ++i) of_query[i] *= small.state_units[chunk.slot][i / 8];
      const float* const y = call.grad_normalizer(at.index);
      add_outer_product(of_query, y[i0], y[i0 + 8], call.columns().states[chunk.slot], call.lane);
    }
    scale_rows(of_query, read_state[0] * inverse, read_state[1] * inverse);
    ptx::fence_registers(of_query);
    ptx::wgmma_fence();
    issue_short_product<Element, Major::kK, Major::kMN>(of_query, call.pairs(), key, true);
    ptx::wgmma_commit();
    arrive_warp(&small.state_empty[chunk.slot], call.lane);  // that product has what was read of its units and z

    ptx::wgmma_wait<2>();
    ptx::fence_registers(of_key);
    if constexpr (Call::kOuterInProducts) ptx::fence_registers(left_ones);
    if constexpr (kHalf) {
#pragma unroll
      for (int i = 0; i < 32; ++i) of_key[i] *= unit;
      add_outer_product(of_key, 1.0f, 1.0f, call.columns().grad_state, call.lane);
    }
    float dot[2] = {0.0f, 0.0f};
    add_dots<Element>(dot, of_key, key, place);
    scale_rows(of_key, read[0] * inverse, read[1] * inverse);
    ptx::fence_registers(of_key);
    ptx::wgmma_fence();
    issue_short_product<Element, Major::kMN, Major::kMN>(of_key, call.pairs(), query, true);
    ptx::wgmma_commit();
    store_dots(call.crossings(at.index).keys, {read[0] * dot[0], read[1] * dot[1]}, place);

    ptx::wgmma_wait<1>();
    ptx::fence_registers(of_query);
    ptx::fence_registers(of_value);
    arrive_warp(&small.grad_state_empty, call.lane);
    const float of_values = unit * reciprocal_of_power(score_unit);
    scale_rows(of_value, read[0] * of_values, read[1] * of_values);
    ptx::fence_registers(of_value);
    ptx::wgmma_fence();
    issue_short_product<Element, Major::kMN, Major::kMN>(of_value, call.scores(), grad_values, true);
    ptx::wgmma_commit();

    uint32_t packed[16];
    remove_along<Element>(of_query, query, divided.inverse_squares[at.index], place);
    pack_sums<Element>(packed, of_query, grad_unit);
    send(kQueries, parity, packed, chunk.first);
    ptx::wgmma_wait<0>();
    ptx::fence_registers(of_key);
    ptx::fence_registers(of_value);
    arrive_warp(&small.pairs_empty, &small.empty[at.index], call.lane);
    pack_sums<Element>(packed, of_key, grad_unit);
    send(kKeys, parity, packed, chunk.first);
    pack_sums<Element>(values, of_value, score_unit);
    values_first = chunk.first;
    at.advance(Shared::kStages);
    parity ^= 1;
  });
  send_values();
  if (call.lane == 0) ptx::bulk_wait<0>();
}

/// A warp: d log f of every chunk, when its stage is free again and before it is filled. As store_gate_gradients, but a lane's addresses run on: in
/// few instructions.
template <typename Call>
__device__ __forceinline__ void store_divided_gate_gradients(const Call& call) {
  const auto& p = call.p;
  int64_t first_done = int64_t{kChunk} * call.order.chunk(call.piece.begin, 0);  // of the next chunk
  const float *const of_head = call.gate(), *gate[2];
  float* to[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t token = first_done + 2 * call.lane + i;
    gate[i] = of_head + token * p.gate.token_stride;
    to[i] = p.grad_gate + (call.b * p.length + token) * p.heads + call.h;
  }
  const auto begin = [](const auto&) {};
  finish_chunks(call, begin, [&](const FusedCrossings& crossings, auto wait) {
    const int tokens = static_cast<int>(min(p.length - first_done, int64_t{kChunk}));
    // Beyond the last token the first one's: where lanes branch apart around a load, no loop of the kernel has its counters in uniform registers.
    const auto is_cut_at = [&](int i) { return is_cut(load_global(2 * call.lane + i < tokens ? gate[i] : of_head)); };
    const Cuts cuts{is_cut_at(0), is_cut_at(1)};
    wait();
    const float2 both = gate_gradient<false>(crossings, cuts, call.lane);
    if (2 * call.lane < tokens) *to[0] = both.x;
    if (2 * call.lane + 1 < tokens) *to[1] = both.y;
    first_done -= kChunk;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      gate[i] -= kChunk * p.gate.token_stride;
      to[i] -= kChunk * p.heads;
    }
  });
}

}  // namespace lethe::matrix_state
