#pragma once
// A head's tokens in segments of kSegmentChunks chunks, a CTA each, so that few heads fill a GPU.
//
// A CTA reads its keys and values twice: first for the sum that they add to the state, then, with the state before the segment at hand, for all else.
// The second time they come from the L2 cache. Between, a warp waits for its part of the state after the segment before and hands on
//
//   after = E · before + sum        E: the product of the segment's gates
//
// A segment waits for one whose CTA has a lower number, so that it runs already or has ended: CTAs start in the order of their numbers.

#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/matrix_state/sweep.hpp"

namespace lethe::matrix_state {

/// Segments of a sequence.
__host__ __device__ constexpr int64_t segments_of(int64_t length) {
  constexpr int64_t kTokens = kSegmentChunks * kChunk;
  return (length + kTokens - 1) / kTokens;
}

/// The calling CTA's segment of a sweep: CTAs of one segment of all heads and tiles come before those of the next one.
struct Segment {
  int index;         ///< in the sweep's order
  int begin, count;  ///< its chunks, by time
  bool reverse, first, last;

  __device__ Segment(int64_t length, bool reversed, int64_t all_heads, int tiles) : reverse(reversed) {
    const int chunks = static_cast<int>((length + kChunk - 1) / kChunk),
              segments = static_cast<int>(segments_of(length));
    index = static_cast<int>(blockIdx.x / (all_heads * tiles));
    const int in_time = reverse ? segments - 1 - index : index;
    begin = in_time * kSegmentChunks;
    count = min(kSegmentChunks, chunks - begin);
    first = index == 0;
    last = index + 1 == segments;
  }

  /// The place in time of its n-th chunk.
  __device__ int chunk(int n) const { return begin + (reverse ? count - 1 - n : n); }
};

/// A warp's part of the states that segments hand on.
template <int kTiles>
struct HandedStates {
  float* own;  ///< the state before the segment at −kTiles·kComputing·4, that after it here
  int32_t* ready;

  __device__ HandedStates(const SegmentStates& all, int64_t length, const Segment& segment, int64_t tile_head) {
    const int64_t place = tile_head * (segments_of(length) - 1) + segment.index;
    own = all.states + place * (kTiles * kComputing * 4) + threadIdx.x * 4;
    ready = all.ready + place * kWarps + threadIdx.x / 32;
  }

  /// The state before the segment, from the one before it.
  __device__ void receive(float (&state)[kTiles][4]) const {
    if (threadIdx.x % 32 == 0)
      while (!ptx::load_acquire(ready - kWarps)) __nanosleep(40);
    __syncwarp();
    const float* from = own - kTiles * kComputing * 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(state[i][0]), "=f"(state[i][1]), "=f"(state[i][2]), "=f"(state[i][3])
                   : "l"(from + i * kComputing * 4)
                   : "memory");
  }

  /// decay · before + sum to the next segment.
  __device__ void hand_on(const float (&before)[kTiles][4], const float (&sum)[kTiles][4], float decay) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      *reinterpret_cast<float4*>(own + i * kComputing * 4) = {
          fmaf(decay, before[i][0], sum[i][0]), fmaf(decay, before[i][1], sum[i][1]),
          fmaf(decay, before[i][2], sum[i][2]), fmaf(decay, before[i][3], sum[i][3])};
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      __threadfence();
      ptx::store_release(ready, 1);
    }
  }
};

/// A warp's part of a state [rows, columns] of up to 64 × 64 of a head: zeros beyond, or of a null pointer.
__device__ inline void load_state(float (&state)[8][4], const float* from, int64_t head, int rows, int columns) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = row + 8 * (e / 2), c = column + 8 * n + e % 2;
      state[n][e] = from && r < rows && c < columns ? from[(head * rows + r) * columns + c] : 0.0f;
    }
}

}  // namespace lethe::matrix_state
