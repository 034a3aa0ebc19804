#pragma once
// Consumer warps hand shared memory back to the thread that fills it.

#include "optimized/cuda/hopper/ptx/barrier.cuh"

namespace lethe::hopper {

// Lane 0 arrives for its warp, after all lanes. compute-sanitizer's racecheck does not follow an arrival on behalf of other lanes: in the build that
// it checks every lane arrives.
#ifdef LETHE_EVERY_LANE_ARRIVES
inline constexpr int kArrivalsOfAWarp = 32;
#else
inline constexpr int kArrivalsOfAWarp = 1;
#endif

/// The warp has read its part of the memory that `barrier` guards.
__device__ inline void release(uint64_t* barrier, int lane) {
  __syncwarp();
  if (lane < kArrivalsOfAWarp) ptx::mbarrier_arrive(barrier);
}

}  // namespace lethe::hopper
