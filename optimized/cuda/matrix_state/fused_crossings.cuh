#pragma once
// d log f of the fused gradients: as in crossings.cuh, of keys by queries and in one pass.

#include "optimized/cuda/matrix_state/crossings.cuh"
#include "optimized/cuda/matrix_state/fragments.cuh"

namespace lethe::matrix_state {

/// What a chunk's pairs and states give to d log f.
struct FusedCrossings {
  float queries[kChunk], keys[kChunk];  ///< what each token shares with states outside the chunk
  float pairs[kWarps][kChunk];          ///< sums of pairs that a gate separates, by 16 keys
  float states[kWarps];                 ///< shares of ⟨S, R⟩
};

/// Of 16 keys' weighted pairs M [16, 64] by query: Σ_{j < l} Σ_{i ≥ l} M_ji of each l. Every term is a pair that gate l separates.
__device__ inline void sum_key_crossings(const float (&pairs)[8][4], Place at, float* to) {
  const int g = at.lane / 4, t = at.lane % 4;
  float sums[8][2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int j = 16 * at.block + g + 8 * half;
    float after = 0.0f;
#pragma unroll
    for (int n = 7; n >= 0; --n) {
      const float m0 = pairs[n][2 * half], m1 = pairs[n][2 * half + 1];
      float sum = m0 + m1;
      float other = __shfl_down_sync(kAllLanes, sum, 1, 4);
      if (t < 3) sum += other;
      other = __shfl_down_sync(kAllLanes, sum, 2, 4);
      if (t < 2) sum += other;
      other = __shfl_down_sync(kAllLanes, sum, 1, 4);
      const float here = after + (t == 3 ? 0.0f : other) + m1;
      const int l = 8 * n + 2 * t;
      if (l > j) sums[n][0] += here + m0;
      if (l + 1 > j) sums[n][1] += here;
      after += __shfl_sync(kAllLanes, sum, 0, 4);
    }
  }
  store_sums_of_lanes(sums, to, at.lane);
}

/// A warp, of each lane's own sums: `after` becomes that of its lane and all later ones, `before` that of all earlier ones; returns that of all later
/// ones.
__device__ __forceinline__ float sum_around(float& after, float& before, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float later = __shfl_down_sync(kAllLanes, after, step), earlier = __shfl_up_sync(kAllLanes, before, step);
    if (lane + step < 32) after += later;
    if (lane >= step) before += earlier;
  }
  float beyond = __shfl_down_sync(kAllLanes, after, 1);
  if (lane == 31) beyond = 0.0f;
  before = __shfl_up_sync(kAllLanes, before, 1);
  if (lane == 0) before = 0.0f;
  return beyond;
}

/// A warp: d log f of a chunk of `tokens` tokens, `stride` apart.
__device__ inline void store_gate_gradient(const FusedCrossings& from, float* to, int64_t stride, int64_t tokens,
                                           int lane) {
  const float q0 = from.queries[2 * lane], q1 = from.queries[2 * lane + 1], k0 = from.keys[2 * lane];
  float after = q0 + q1, before = k0 + from.keys[2 * lane + 1];
  const float beyond = sum_around(after, before, lane);
  float x[2] = {0.0f, 0.0f};
  for (int block = 0; block <= lane / 8; ++block) {
    x[0] += from.pairs[block][2 * lane];
    x[1] += from.pairs[block][2 * lane + 1];
  }
  const float states = (from.states[0] + from.states[1]) + (from.states[2] + from.states[3]);
  x[0] += (after + before) + states;
  x[1] += ((q1 + beyond) + (before + k0)) + states;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (2 * lane + i < tokens) to[(2 * lane + i) * stride] = x[i];
}

}  // namespace lethe::matrix_state
