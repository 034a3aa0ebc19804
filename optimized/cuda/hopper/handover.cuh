#pragma once
// How consumer warps hand shared memory back to whoever fills it. Internal to optimized/cuda.

#include "optimized/cuda/hopper/ptx/barrier.cuh"

namespace lethe {

// Who arrives at a barrier that hands shared memory back: lane 0 for its warp, after all lanes. compute-sanitizer's racecheck does not
// follow an arrival on behalf of others; the build it checks lets every lane arrive.
#ifdef LETHE_EVERY_LANE_ARRIVES
inline constexpr int kArrivalsOfAWarp = 32;
#else
inline constexpr int kArrivalsOfAWarp = 1;
#endif

/// The warp has read its part of what `barrier` guards.
__device__ inline void release(uint64_t* barrier, int lane) {
  __syncwarp();
  if (lane < kArrivalsOfAWarp) ptx::mbarrier_arrive(barrier);
}

}  // namespace lethe
