#pragma once
// The gradients' pairs of a normalised call with a gate a token, whose forward left S and d = 1 / z·q of every token. With A the weights of values,
//
//   A_ji = d_i D_ij q_i·k_j,   y_i = −dO_i·O_i = −Σ_j A_ji (dO_i·v_j) − d_i E_i q_i·(S dO_i)
//   dP_ji = d_i D_ij (dO_i·v_j + y_i),   dq = dPᵀ K + d E (dO Sᵀ + y zᵀ),   dv = A dO + E K R,   R = E_C R + (q · d D)ᵀ [dO, y]
//
// so that dO is read as it came. The sum over what a query has, pairs with its own token among them, is exactly 0, since z·q divides what it is a sum
// of:
//
//   Σ_{j ≤ i} M_ji + d_i E_i q_i·(S dO_i + y_i z) = 0,   M_ji = A_ji (dO_i·v_j + y_i)
//
// and so d log f of a chunk has of queries from a token on −Σ_{j ≥ l} Σ_{i ≥ j} M_ji in place of differences of sums (gradients_gates.cuh). Pairs are
// queries by keys: what a query has is summed by one warp alone, before dP gets it.

#include "optimized/cuda/matrix_state/hopper/gradients_pairs.cuh"

namespace lethe::matrix_state {

/// A warp's part of a chunk's pairs, queries by keys: a query's keys are those up to it that no cut separates from it.
struct DividedPairs {
  /// seen: of causal().
  __device__ __forceinline__ DividedPairs(const DividedGates& of, Place place, uint32_t seen)
      : gates_(of), place_(place), seen_(seen), first_(16 * place.block + place.lane / 4), cuts_(of.first_seen[0] > 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] = of.sum[first_ + 8 * half];
      divisor_[half] = of.divisors[first_ + 8 * half];
    }
  }

  /// A bit for each of a lane's pairs: whether the key isn't after the query. The same in all chunks.
  static __device__ __forceinline__ uint32_t causal(Place place) {
    const int last = 16 * place.block + place.lane / 4 - 2 * (place.lane % 4);
    uint32_t seen = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) seen |= (8 * (i / 4) + i % 2 - 8 * (i / 2 % 2) <= last ? 1u : 0u) << i;
    return seen;
  }

  /// What P is multiplied by: d_i D_ij and the scale, 0 of keys that a query doesn't see. All warps have the same code: a way for each would be four
  /// times as much, which the instruction cache hasn't room for.
  __device__ __forceinline__ void take_weights(float (&weights)[32]) const {
    const int of_lane = 2 * (place_.lane % 4);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 sum_j = *reinterpret_cast<const float2*>(&gates_.sum[8 * n + of_lane]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e / 2;
        const float weight = __fmul_rn(divisor_[half], exp2_approximate((e % 2 ? sum_j.y : sum_j.x) - sum_[half]));
        weights[4 * n + e] = seen_ >> (4 * n + e) & 1 ? weight : 0.0f;
      }
    }
    if (!cuts_) return;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int2 first_seen = *reinterpret_cast<const int2*>(&gates_.first_seen[8 * n + of_lane]);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first_ + 8 * (e / 2) > kChunk - 1 - (e % 2 ? first_seen.y : first_seen.x)) weights[4 * n + e] = 0.0f;
    }
  }

  /// P becomes A, and A (dO·v) is added to a lane's share of what queries have.
  __device__ __forceinline__ void weigh(float (&scores)[32], float (&grads)[32], const float (&weights)[32],
                                        float (&of_queries)[2]) const {
    if (cuts_) {  // of another sequence nothing, were it no number
#pragma unroll
      for (int i = 0; i < 32; ++i)
        if (weights[i] == 0.0f) scores[i] = grads[i] = 0.0f;
    }
    float parts[2][2] = {};
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      float& part = parts[i / 2 % 2][i % 2];
      scores[i] = __fmul_rn(scores[i], weights[i]);
      part = __fmaf_rn(scores[i], grads[i], part);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      of_queries[half] = __fadd_rn(of_queries[half], __fadd_rn(parts[half][0], parts[half][1]));
  }

  /// dO·v becomes dP, with what queries have; what keys have of M: number 2n + e of a lane is its part of key 8n + 2t + e's.
  static __device__ __forceinline__ void finish(const float (&scores)[32], float (&grads)[32],
                                                const float (&weights)[32], const float (&y)[2], float (&of_keys)[16]) {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int near = 4 * n + e, far = near + 2;
        grads[near] += y[0];
        grads[far] += y[1];
        of_keys[2 * n + e] = fmaf(scores[far], grads[far], scores[near] * grads[near]);
        grads[near] *= weights[near];
        grads[far] *= weights[far];
      }
  }

 private:
  const DividedGates& gates_;
  const Place place_;
  const uint32_t seen_;
  const int first_;  ///< query of a lane's two, and
  const bool cuts_;  ///< whether one is in the chunk
  float sum_[2], divisor_[2];
};

/// Tiles of a chunk.
struct DividedTiles {
  const char *query, *key, *value, *grad_values, *state;
};

/// Of a lane's queries: its shares of what they have, and of their squares.
struct QueryShares {
  float sums[2], squares[2];
};

/// q·k and dO·v of a chunk, queries by keys, and what queries have of S: by a warpgroup. unit(n): of the n-th 16 rows of S, where those have one.
/// `meanwhile` runs under the products.
template <typename Element, typename Unit, typename Meanwhile>
__device__ __forceinline__ QueryShares multiply_pairs(float (&scores)[32], float (&grads)[32],
                                                      const DividedTiles& tiles, const DividedGates& gates, Unit&& unit,
                                                      Place at, Meanwhile&& meanwhile) {
  using ptx::Major;
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  float reads[32];
  ptx::undefined(reads);
  ptx::undefined(scores);
  ptx::undefined(grads);
  ptx::fence_registers(reads);
  ptx::fence_registers(scores);
  ptx::fence_registers(grads);
  ptx::wgmma_fence();
  issue_short_product<Element, Major::kK, Major::kK>(reads, tiles.grad_values, tiles.state, false);
  ptx::wgmma_commit();
  issue_short_product<Element, Major::kK, Major::kK>(scores, tiles.query, tiles.key, false);
  issue_short_product<Element, Major::kK, Major::kK>(grads, tiles.grad_values, tiles.value, false);
  ptx::wgmma_commit();
  meanwhile();
  ptx::wgmma_wait<1>();
  ptx::fence_registers(reads);
  if constexpr (kHalf) {
#pragma unroll
    for (int i = 0; i < 32; ++i) reads[i] = __fmul_rn(reads[i], unit(i / 8));
  }
  QueryShares of{};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t q[4];
    load_left(q, ptx::shared_address(tiles.query), c, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(q[i]);
      float &sum = of.sums[i % 2], &square = of.squares[i % 2];
      sum = __fmaf_rn(reads[8 * c + 2 * i], x.x, __fmaf_rn(reads[8 * c + 2 * i + 1], x.y, sum));
      square = fmaf(x.x, x.x, fmaf(x.y, x.y, square));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half)
    of.sums[half] = __fmul_rn(of.sums[half], gates.read_state[16 * at.block + at.lane / 4 + 8 * half]);
  ptx::wgmma_wait<0>();
  ptx::fence_registers(scores);
  ptx::fence_registers(grads);
  return of;
}

/// 1 / |q|² of a query, by whose length no value changes; 0 where it is no number that divides.
__device__ __forceinline__ float inverse_square(float square) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(square));
  return square >= 0x1p-126f && square < 0x1p126f ? inverse : 0.0f;
}

/// y of a warp's queries as a column beside dO. Of float16 all have one unit, for which the warpgroup meets: sync(); `largest` is each warp's.
/// also(column, half, row, y) of a lane's row.
template <typename Element, typename Column, typename Sync, typename Also>
__device__ __forceinline__ void publish_queries(Column& to, const float (&y)[2], float (&largest)[kWarps], Place at,
                                                Sync&& sync, Also&& also) {
  float inverse = 1.0f;
  if constexpr (std::is_same_v<Element, __half>) {
    const float most = largest_of_warp(fmaxf(fabsf(y[0]), fabsf(y[1])));
    if (at.lane == 0) largest[at.block] = most;
    sync();
    const float unit = power_of_two_below(fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])));
    if (at.block == 0 && at.lane == 0) to.unit = unit;
    inverse = reciprocal_of_power(unit);
  }
  const int half = at.lane % 4, row = 16 * at.block + at.lane / 4 + 8 * half;
  if (half < 2) {
    const float of_row = half == 0 ? y[0] : y[1];
    also(to, half, row, of_row);
    store_parts<Element>(to.values, row, of_row * inverse);
  }
  ptx::fence_async_shared();
}

/// R's sum of a segment, over a chunk, and its column y's: a warp's 16 rows.
template <typename Element, typename State, typename Column>
__device__ __forceinline__ void add_divided(State& state, StateColumn& last, const char* query, const char* grad_values,
                                            const DividedGates& gates, const Column& y, Place at) {
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  // Of float16 the chunk's weights have a unit, over which the sum is meanwhile.
  const float unit = kHalf ? gates.unit : 1.0f;
  state.forget(gates.total, kHalf ? gates.total * reciprocal_of_power(unit) : gates.total);
  last.forget(gates.total);
  ColumnProduct<Element> product(y.values);
  add_to_state<Element, Weights::kGates>(state.sum, query, grad_values, gates.write, 1.0f, at, product);
  if constexpr (kHalf) {
#pragma unroll
    for (float& x : state.sum) x *= unit;
  }
  last.add(product, kHalf ? __fmul_rn(y.unit, unit) : 1.0f);
}

/// A warpgroup: A and dP of every chunk, in 16 bits to shared memory, and before those y. Of bfloat16 a chunk's are stored under the next one's
/// products; no copy of tiles or of S that these wait for depends on that. Of float16 they are found with their units when the chunk before was read.
template <typename Call>
__device__ __forceinline__ void sweep_divided_pairs(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  auto& small = call.small();
  auto& divided = call.divided();
  const Place place{call.warp, call.lane};
  const uint32_t seen = static_cast<uint32_t>(ptx::opaque(static_cast<int>(DividedPairs::causal(place))));
  constexpr bool kLater = !Call::kHalf;
  [[maybe_unused]] uint32_t packed_scores[16], packed_grads[16];
  ptx::RingPosition at;
  int packed = 0;  // chunks
  const auto store = [&] {
    if (!kLater || packed == 0) return;
    ptx::mbarrier_wait(&small.pairs_empty, packed & 1);
    store_pairs(call, packed_scores, packed_grads, place);
  };
  call.each_chunk([&](const auto& chunk) {
    const char* const tiles = call.stage(at.index);
    const DividedTiles of_chunk{tiles + Shared::kQuery, tiles + Shared::kKey, tiles + Shared::kValue,
                                tiles + Shared::kGradValues, call.state(chunk.slot)};
    const DividedGates& gates = call.gates(at.index);
    FusedCrossings& crossings = call.crossings(at.index);
    float scores[32], grads[32], weights[32];
    ptx::mbarrier_wait(&small.full[at.index], at.parity);
    ptx::mbarrier_wait(&small.state_full[chunk.slot], chunk.parity);
    const DividedPairs pairs(gates, place, seen);
    QueryShares of = multiply_pairs<Element>(
        scores, grads, of_chunk, gates, [&](int n) { return small.state_units[chunk.slot][n]; }, place,
        [&] {
          store();
          pairs.take_weights(weights);
        });
    pairs.weigh(scores, grads, weights, of.sums);
    const float y[2] = {-quad_sum(of.sums[0]), -quad_sum(of.sums[1])};
    const float inverse_squares[2] = {inverse_square(quad_sum(of.squares[0])), inverse_square(quad_sum(of.squares[1]))};
    publish_queries<Element>(
        call.columns().grad_normalizer[at.index], y, divided.largest, place,
        [] { ptx::named_barrier_sync(2, kComputing); },
        [&](auto& column, int half, int row, float of_row) {
          if constexpr (Call::kOuterInProducts) divided.outer[at.index][row] = outer_parts<Element>(of_row);
          else column.whole[row] = of_row;
          divided.inverse_squares[at.index][row] = half == 0 ? inverse_squares[0] : inverse_squares[1];
        });
    arrive_warp(&divided.full[at.index], call.lane);
    arrive_warp(&small.state_empty[chunk.slot], call.lane);  // y has what was read of its units
    float of_keys[16];
    DividedPairs::finish(scores, grads, weights, y, of_keys);
    const float2 of_two = tile::sums_of_rows(of_keys, call.lane);
    *reinterpret_cast<float2*>(&crossings.pairs[call.warp][2 * call.lane]) = {-of_two.x, -of_two.y};
    arrive_warp(&small.empty[at.index], call.lane);
    ++packed;
    if constexpr (kLater) {
      pack_sums<Element>(packed_grads, grads, 1.0f);
      pack_sums<Element>(packed_scores, scores, 1.0f);
    } else {
      ptx::mbarrier_wait(&small.pairs_empty, packed & 1);
      store_pairs(call, scores, grads, place);
    }
    at.advance(Shared::kStages);
  });
  store();
}

}  // namespace lethe::matrix_state
