#pragma once
// d log f of a chunk. The gate of token l separates the pairs of a key j < l and a query i ≥ l. Of those inside the chunk the sum is
//
//   Σ_{i ≥ l} A_i − Σ_{j ≥ l} B_j,   A_i = Σ_{j < i} M_ji,   B_j = Σ_{i > j} M_ji
//
// of the weighted products M, without those of a token with itself: differences of sums of one chunk, so that no error grows with the length. What
// tokens share with states outside the chunk is summed over exactly those that the gate separates.

#include "optimized/cuda/matrix_state/fused_crossings.cuh"
#include "optimized/cuda/tile/row_sums.cuh"

namespace lethe::matrix_state {

/// A − B of a warp's 16 keys, by query: A of all, B of those that are its keys. Of M's numbers a lane has keys g and g + 8, queries 8n + 2t and the
/// next.
struct PairSums {
  float of_queries[16] = {}, of_keys[2] = {};

  __device__ __forceinline__ void add(int n, const float (&near)[2], const float (&far)[2]) {
    of_queries[2 * n] = near[0] + far[0];
    of_queries[2 * n + 1] = near[1] + far[1];
    of_keys[0] += near[0] + near[1];
    of_keys[1] += far[0] + far[1];
  }

  __device__ __forceinline__ void store(float* to, Place at) {
    *reinterpret_cast<float2*>(to + 2 * at.lane) = tile::sums_of_rows(of_queries, at.lane);
    const float near = quad_sum(of_keys[0]), far = quad_sum(of_keys[1]);
    __syncwarp();
    if (at.lane % 4 == 0) {
      to[16 * at.block + at.lane / 4] -= near;
      to[16 * at.block + at.lane / 4 + 8] -= far;
    }
  }
};

/// A lane's two gates of the chunk that begins at token `first`, of tokens 2l and 2l + 1: whether they are cuts.
struct Cuts {
  bool first, second;
};

/// A warp: d log f of a lane's two tokens of a chunk; 0 of cuts. kQueries: whether there are queries' sums, or those of pairs have them.
template <bool kQueries>
__device__ inline float2 gate_gradient(const FusedCrossings& from, const Cuts& cuts, int lane) {
  float2 query{0.0f, 0.0f};
  if constexpr (kQueries) query = *reinterpret_cast<const float2*>(&from.queries[2 * lane]);
  const float2 key = *reinterpret_cast<const float2*>(&from.keys[2 * lane]);
#pragma unroll
  for (int block = 0; block < kWarps; ++block) {
    const float2 pair = *reinterpret_cast<const float2*>(&from.pairs[block][2 * lane]);
    query.x += pair.x;
    query.y += pair.y;
  }
  float after = query.x + query.y, before = key.x + key.y;
  const float beyond = sum_around(after, before, lane);
  const float states = (from.states[0] + from.states[1]) + (from.states[2] + from.states[3]);
  return {cuts.first ? 0.0f : (after + before) + states,
          cuts.second ? 0.0f : ((query.y + beyond) + (before + key.x)) + states};
}

/// A warp: that of a chunk of `tokens` tokens, `stride` apart.
__device__ inline void store_gate_gradient(const FusedCrossings& from, const Cuts& cuts, float* to, int64_t stride,
                                           int64_t tokens, int lane) {
  const float2 both = gate_gradient<true>(from, cuts, lane);
  const float x[2] = {both.x, both.y};
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (2 * lane + i < tokens) to[(2 * lane + i) * stride] = x[i];
}

}  // namespace lethe::matrix_state
