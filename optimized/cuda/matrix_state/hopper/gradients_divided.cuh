#pragma once
// The gradients' pairs of a normalised call with a gate a token, whose forward left S and d = 1 / z·q of every token. With A the weights of values,
//
//   A_ji = d_i D_ij q_i·k_j,   y_i = −dO_i·O_i = −Σ_j A_ji (dO_i·v_j) − d_i E_i q_i·(S dO_i)
//   dP_ji = d_i D_ij (dO_i·v_j + y_i),   dq = dPᵀ K + d E (dO Sᵀ + y zᵀ),   dv = A dO + E K R,   R = E_C R + (q · d D)ᵀ [dO, y]
//
// so that dO is read as it came. The sum over what a query has, pairs with its own token among them, is exactly 0, since z·q divides what it is a sum of:
//
//   Σ_{j ≤ i} M_ji + d_i E_i q_i·(S dO_i + y_i z) = 0,   M_ji = A_ji (dO_i·v_j + y_i)
//
// and so d log f of a chunk has of queries from a token on −Σ_{j ≥ l} Σ_{i ≥ j} M_ji in place of differences of sums (gradients_gates.cuh).

#include "optimized/cuda/matrix_state/hopper/gradients_pairs.cuh"

namespace lethe::matrix_state {

/// What a query of a warp's 16 keys, or rows of S, has in its chunk: number 2n + e of a lane is its part of query 8n + 2t + e's.
struct QuerySums {
  float parts[16];

  /// Σ_r S_r·dO_i q_ir of rows of S, [rows, queries], in `reads`; q: a tile of 64 tokens.
  template <typename Element>
  __device__ __forceinline__ void of_states(const float (&reads)[32], const char* query, Place at) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t q[4];
      load_left_transposed(q, ptx::shared_address(query), k, at);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float2 near = unpack<Element>(q[2 * pair]), far = unpack<Element>(q[2 * pair + 1]);
        const float* const of = &reads[8 * k + 4 * pair];
        parts[4 * k + 2 * pair] = __fmaf_rn(far.x, of[2], __fmul_rn(near.x, of[0]));
        parts[4 * k + 2 * pair + 1] = __fmaf_rn(far.y, of[3], __fmul_rn(near.y, of[1]));
      }
    }
  }
  /// Times each query's number, and `unit`.
  template <bool kInUnits>
  __device__ __forceinline__ void scale(const float* factors, float unit, int lane) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 x = *reinterpret_cast<const float2*>(&factors[8 * n + lane % 4 * 2]);
      parts[2 * n] = __fmul_rn(parts[2 * n], kInUnits ? __fmul_rn(x.x, unit) : x.x);
      parts[2 * n + 1] = __fmul_rn(parts[2 * n + 1], kInUnits ? __fmul_rn(x.y, unit) : x.y);
    }
  }
};

/// A warp's part of a chunk's pairs: a key's queries are those from it on, up to the last one that no cut separates from it.
struct DividedPairs {
  __device__ __forceinline__ DividedPairs(const DividedGates& of, float scale, Place place)
      : gates_(of), place_(place), first_(16 * place.block + place.lane / 4), cuts_(of.first_seen[0] > 0) {
    constexpr int kFlip = kChunk - 1;
    border_ = of.sum[16 * place.block + 15];
    scale_ = scale;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      last_seen_[half] = kFlip - of.first_seen[first_ + 8 * half];
      sum_[half] = of.sum[first_ + 8 * half];
    }
  }

  /// P becomes A, of which `weights` is the part without q·k, and both are 0 of queries before the keys; A (dO·v) is added to what queries have.
  __device__ __forceinline__ void weigh(float (&scores)[32], float (&grads)[32], float (&weights)[32],
                                        QuerySums& sums) const {
    // Of queries after the keys' own 16 tokens D is a product: from the key to the last of those, and from there.
    const float to_border[2] = {__fmul_rn(scale_, exp2_approximate(sum_[0] - border_)),
                                __fmul_rn(scale_, exp2_approximate(sum_[1] - border_))};
    each_eight(
        [&](int n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[4 * n + e] = grads[4 * n + e] = 0.0f;
        },
        [&](int n, auto own_tokens, auto masked) {
          constexpr bool kOwn = decltype(own_tokens)::value, kMasked = decltype(masked)::value;
          const int i = query_of(n);
          const float2 sum_i = *reinterpret_cast<const float2*>(&gates_.sum[i]),
                       divisor = *reinterpret_cast<const float2*>(&gates_.divisors[i]);
          [[maybe_unused]] float from_border[2];
          if constexpr (!kOwn) {
            from_border[0] = __fmul_rn(exp2_approximate(border_ - sum_i.x), divisor.x);
            from_border[1] = __fmul_rn(exp2_approximate(border_ - sum_i.y), divisor.y);
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int half = e / 2;
            float &weight = weights[4 * n + e], &score = scores[4 * n + e], &part = sums.parts[2 * n + e % 2];
            if constexpr (kOwn)
              weight = __fmul_rn(__fmul_rn(scale_, exp2_approximate(sum_[half] - (e % 2 ? sum_i.y : sum_i.x))),
                                 e % 2 ? divisor.y : divisor.x);
            else weight = __fmul_rn(to_border[half], from_border[e % 2]);
            const bool seen = !kMasked || is_seen(i, e);
            score = seen ? __fmul_rn(score, weight) : 0.0f;
            part = __fmaf_rn(score, seen ? grads[4 * n + e] : 0.0f, part);
          }
        });
  }

  /// dO·v becomes dP, with what queries have; what a key has of M: a lane's parts of two keys'.
  __device__ __forceinline__ void finish(const float (&scores)[32], float (&grads)[32], const float (&weights)[32],
                                         const float* of_queries, float (&of_keys)[2]) const {
    of_keys[0] = of_keys[1] = 0.0f;
    each_eight([](int) {},
               [&](int n, auto, auto masked) {
                 constexpr bool kMasked = decltype(masked)::value;
                 const int i = query_of(n);
                 const float2 y = *reinterpret_cast<const float2*>(&of_queries[i]);
#pragma unroll
                 for (int e = 0; e < 4; ++e) {
                   float& grad = grads[4 * n + e];
                   const bool seen = !kMasked || is_seen(i, e);
                   const float sum = seen ? grad + (e % 2 ? y.y : y.x) : 0.0f;
                   of_keys[e / 2] = fmaf(scores[4 * n + e], sum, of_keys[e / 2]);
                   grad = seen ? sum * weights[4 * n + e] : 0.0f;
                 }
               });
  }

 private:
  static constexpr int kAnyBlock = -1;

  __device__ __forceinline__ int query_of(int n) const { return 8 * n + 2 * (place_.lane % 4); }
  __device__ __forceinline__ bool is_seen(int i, int e) const {
    const int j = first_ + 8 * (e / 2);
    return static_cast<unsigned>(i + e % 2 - j) <= static_cast<unsigned>(last_seen_[e / 2] - j);
  }

  /// before(n) of eight queries before the keys, else visit(n, whether they are among the keys' tokens, whether some are not seen).
  template <int kBlock, typename Before, typename Visit>
  __device__ __forceinline__ void each_eight_of(Before&& before, Visit&& visit) const {
    const int own = kBlock == kAnyBlock ? place_.block : kBlock;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (n / 2 < own) before(n);
      else if (n / 2 == own) visit(n, std::true_type{}, std::true_type{});
      else visit(n, std::false_type{}, std::bool_constant<kBlock == kAnyBlock>{});
    }
  }
  /// Each warp's part has code of its own, without branches; where a cut is in the chunk, all warps have the same.
  template <typename Before, typename Visit>
  __device__ __forceinline__ void each_eight(Before&& before, Visit&& visit) const {
    if (cuts_) each_eight_of<kAnyBlock>(before, visit);
    else if (place_.block == 0) each_eight_of<0>(before, visit);
    else if (place_.block == 1) each_eight_of<1>(before, visit);
    else if (place_.block == 2) each_eight_of<2>(before, visit);
    else each_eight_of<3>(before, visit);
  }

  const DividedGates& gates_;
  const Place place_;
  const int first_;  ///< key of a lane's two, and
  const bool cuts_;  ///< whether one is in the chunk
  float scale_, border_, sum_[2];
  int last_seen_[2];
};

/// y of a chunk, from the parts of all warps [warps, queries]: of the warp's own copy, and of its lane's two queries.
__device__ __forceinline__ float2 join_queries(const float (&parts)[kWarps][kChunk], float (&own)[kChunk], int lane) {
  float2 sum = *reinterpret_cast<const float2*>(&parts[0][2 * lane]);
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) {
    const float2 x = *reinterpret_cast<const float2*>(&parts[warp][2 * lane]);
    sum.x += x.x;
    sum.y += x.y;
  }
  const float2 y{-sum.x, -sum.y};
  *reinterpret_cast<float2*>(&own[2 * lane]) = y;
  __syncwarp();
  return y;
}

/// Tiles of a chunk.
struct DividedTiles {
  const char *query, *key, *value, *grad_values, *state;
};

/// q·k and dO·v of a chunk, keys by queries, and what its queries have of a warp's 16 rows of S: by a warpgroup. unit(): of those rows. `meanwhile` runs under
/// the products.
template <typename Element, typename Unit, typename Meanwhile>
__device__ __forceinline__ QuerySums multiply_pairs(float (&scores)[32], float (&grads)[32], const DividedTiles& tiles,
                                                    const DividedGates& gates, Unit&& unit, Place at,
                                                    Meanwhile&& meanwhile) {
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  using ptx::Major;
  QuerySums sums;
  float reads[32];
  ptx::undefined(reads);
  ptx::undefined(scores);
  ptx::undefined(grads);
  ptx::fence_registers(reads);
  ptx::fence_registers(scores);
  ptx::fence_registers(grads);
  ptx::wgmma_fence();
  issue_product<Element, Major::kK, Major::kK>(reads, tiles.state, tiles.grad_values, false);
  ptx::wgmma_commit();
  issue_product<Element, Major::kK, Major::kK>(scores, tiles.key, tiles.query, false);
  issue_product<Element, Major::kK, Major::kK>(grads, tiles.value, tiles.grad_values, false);
  ptx::wgmma_commit();
  meanwhile();
  ptx::wgmma_wait<1>();
  ptx::fence_registers(reads);
  sums.of_states<Element>(reads, tiles.query, at);
  sums.scale<kHalf>(gates.read_state, kHalf ? unit() : 1.0f, at.lane);
  ptx::wgmma_wait<0>();
  ptx::fence_registers(scores);
  ptx::fence_registers(grads);
  return sums;
}

/// y of a chunk as a column beside dO, by a warp.
template <typename Element, typename Column>
__device__ __forceinline__ void prepare_queries(Column& to, float2 y, int lane) {
  prepare_column<Element>(to.values, to.unit, y, lane);
  ptx::fence_async_shared();
}

/// What a lane's rows of dq have along q is taken away: exactly that is 0, since a query times a number has the same values. It is what rounding has left, of
/// dP most of all. Not where |q|² is no number that divides.
template <typename Element>
__device__ __forceinline__ void remove_along(float (&sum)[32], const char* query, Place at) {
  uint32_t q[4][4];
  float dot[2] = {0.0f, 0.0f}, square[2] = {0.0f, 0.0f};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    load_left(q[c], ptx::shared_address(query), c, at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(q[c][i]);
      dot[i % 2] = fmaf(sum[8 * c + 2 * i], x.x, fmaf(sum[8 * c + 2 * i + 1], x.y, dot[i % 2]));
      square[i % 2] = fmaf(x.x, x.x, fmaf(x.y, x.y, square[i % 2]));
    }
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float along = quad_sum(dot[half]), all = quad_sum(square[half]);
    factor[half] = all >= 0x1p-126f && all < 0x1p126f ? -__fdividef(along, all) : 0.0f;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack<Element>(q[c][i]);
      sum[8 * c + 2 * i] = fmaf(factor[i % 2], x.x, sum[8 * c + 2 * i]);
      sum[8 * c + 2 * i + 1] = fmaf(factor[i % 2], x.y, sum[8 * c + 2 * i + 1]);
    }
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
  last.add(product, kHalf ? __fmul_rn(y.unit, unit) : y.unit);
}

/// A warpgroup: A and dP of every chunk, in 16 bits to shared memory, and before those y. Of bfloat16 a chunk's are stored under the next one's products; no
/// copy of tiles or of S that these wait for depends on that. Of float16 they are found with their units when the chunk before was read.
template <typename Call>
__device__ __forceinline__ void sweep_divided_pairs(const Call& call) {
  using Shared = typename Call::Shared;
  using Element = typename Call::Element;
  auto& small = call.small();
  auto& divided = call.divided();
  const Place place{call.warp, call.lane};
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
    QuerySums sums = multiply_pairs<Element>(
        scores, grads, of_chunk, gates, [&] { return small.state_units[chunk.slot][call.warp]; }, place, store);
    const DividedPairs pairs(gates, call.pair_scale(), place);
    pairs.weigh(scores, grads, weights, sums);
    *reinterpret_cast<float2*>(&crossings.pairs[call.warp][2 * call.lane]) = tile::sums_of_rows(sums.parts, call.lane);
    arrive_warp(&small.state_empty[chunk.slot], call.lane);  // the stored sums have what was read of its units
    ptx::named_barrier_sync(2, kComputing);
    const float2 y = join_queries(crossings.pairs, divided.of_warps[call.warp], call.lane);
    if (call.warp == kWarps - 1) {  // which has the fewest pairs
      auto& to = call.columns().grad_normalizer[at.index];
      *reinterpret_cast<float2*>(&to.whole[2 * call.lane]) = y;
      prepare_queries<Element>(to, y, call.lane);
      arrive_warp(&divided.full[at.index], call.lane);
    }
    float of_keys[2];
    pairs.finish(scores, grads, weights, divided.of_warps[call.warp], of_keys);
    store_dots(crossings.queries, {-of_keys[0], -of_keys[1]}, place);
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
