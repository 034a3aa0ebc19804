#pragma once
// The gradient of log f: sums over exactly the pairs of tokens that a gate separates, so that no error of a pair that it doesn't separate is in it.

#include "optimized/cuda/matrix_state/sweep.hpp"

namespace lethe::matrix_state {

/// What a pass computes besides its output: nothing; or the shares of d log f in the gradient of the query (forwards) or of the key (in reverse).
enum class Role { kRead, kQueryGradient, kKeyGradient };

struct Crossings {
  float rows[kChunk];           ///< what each token shares with states outside the chunk, by time
  float pairs[kWarps][kChunk];  ///< sums of pairs that a gate separates, by block of 16 rows
  float states[kWarps];         ///< shares of ⟨state before, gradient after⟩
};

/// Of 64 columns, two of eight a lane: the sum over the lanes that share them.
__device__ inline void store_sums_of_lanes(const float (&sums)[8][2], float* to, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sums[n][i];
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
      if (g == 0) to[8 * n + 2 * t + i] = sum;
    }
  }
}

/// Of 16 rows' weighted pairs M [16, 64], row i = first_row + g (+ 8): Σ_{i ≥ l} Σ_{j < l} M_ij of each l. Every term is a pair that gate l
/// separates.
__device__ inline void sum_crossing_pairs(const float (&pairs)[8][4], int block, int lane, float* to) {
  const int g = lane / 4, t = lane % 4;
  float sums[8][2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = 16 * block + g + 8 * half;
    float before = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float m0 = pairs[n][2 * half], m1 = pairs[n][2 * half + 1];
      float sum = m0 + m1;
      float other = __shfl_up_sync(kAllLanes, sum, 1, 4);
      if (t >= 1) sum += other;
      other = __shfl_up_sync(kAllLanes, sum, 2, 4);
      if (t >= 2) sum += other;
      other = __shfl_up_sync(kAllLanes, sum, 1, 4);
      const float here = before + (t == 0 ? 0.0f : other);
      const int l = 8 * n + 2 * t;
      if (l <= i) sums[n][0] += here;
      if (l + 1 <= i) sums[n][1] += here + m0;
      before += __shfl_sync(kAllLanes, sum, 3, 4);
    }
  }
  store_sums_of_lanes(sums, to, lane);
}

/// A warp: the chunk's shares of d log f. Forwards the pairs inside the chunk and the reads of the state before it; in reverse the writes that later
/// chunks read, and ⟨state before, gradient after⟩.
template <Role kRole>
__device__ void store_crossings(const Crossings& from, float* to, int lane) {
  const float r0 = from.rows[2 * lane], r1 = from.rows[2 * lane + 1];
  float sum = r0 + r1;
  if constexpr (kRole == Role::kQueryGradient) {
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_down_sync(kAllLanes, sum, step);
      if (lane + step < 32) sum += other;
    }
    const float after = __shfl_down_sync(kAllLanes, sum, 1);
    float x[2] = {0.0f, 0.0f};
    for (int block = lane / 8; block < kWarps; ++block) {
      x[0] += from.pairs[block][2 * lane];
      x[1] += from.pairs[block][2 * lane + 1];
    }
    *reinterpret_cast<float2*>(to + 2 * lane) = {x[0] + sum, x[1] + r1 + (lane == 31 ? 0.0f : after)};
  } else {
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(kAllLanes, sum, step);
      if (lane >= step) sum += other;
    }
    float before = __shfl_up_sync(kAllLanes, sum, 1);
    if (lane == 0) before = 0.0f;
    const float states = (from.states[0] + from.states[1]) + (from.states[2] + from.states[3]);
    *reinterpret_cast<float2*>(to + 2 * lane) = {before + states, before + r0 + states};
  }
}

}  // namespace lethe::matrix_state
