#pragma once
// What a thread of the forward kernel does to its logits and sums of a block: its rows are 16·tile + 8·h + lane / 4 of its warp's, for h of 0 and 1.

#include "optimized/cuda/tile/softmax.cuh"

namespace lethe::ampere {

/// S += (c_i − c_j) / scale of a near block: decay · inverse_scale is (c_i − c at the end of the keys' block) / scale, `bias` the rest of each pair
/// of keys, from the lane's first on.
template <int kRowTiles, int kScoreTiles>
__device__ __forceinline__ void add_decay(float (&score)[kRowTiles][kScoreTiles][4], const float (&decay)[kRowTiles][2],
                                          const float4* bias, float inverse_scale) {
#pragma unroll
  for (int c = 0; c < kScoreTiles; ++c) {
    const float4 of_keys = bias[4 * c];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        score[i][c][2 * h] += decay[i][h] * inverse_scale + of_keys.x;
        score[i][c][2 * h + 1] += decay[i][h] * inverse_scale + of_keys.y;
      }
  }
}

/// O of the blocks before may be beyond float, and a maximum that moves would hide it from the sum's bound.
template <int kRowTiles>
__device__ __forceinline__ void keep_sums_beyond_their_bound(float (&sum)[kRowTiles][2]) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (!(sum[i][h] < tile::kLargestSum / 4)) sum[i][h] = INFINITY;
}

}  // namespace lethe::ampere
