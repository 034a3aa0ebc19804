#pragma once
// Two stages of tiles in shared memory.

#include "optimized/cuda/matrix_state/tiles.cuh"

namespace lethe::matrix_state {

/// Steps of a CTA's tiles through stages of kStage bytes: one step in work, the next one on its way.
template <int kStageBytes>
struct TileRing {
  static constexpr int kStages = 2, kStage = kStageBytes, kBytes = kStages * kStage;
  char* memory;
  uint64_t* full;  ///< kStages mbarriers

  __device__ void begin() const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
#endif
  }
  __device__ char* stage(int step) const { return memory + step % kStages * kStage; }
  __device__ uint64_t* barrier(int step) const { return &full[step % kStages]; }

  /// The step's tiles begin to come: `bytes` in all.
  __device__ void expect(int step, int bytes) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect(barrier(step), bytes);
#endif
  }
  /// Every thread, after a step's copies or where there are none.
  __device__ void commit() const {
#if __CUDA_ARCH__ < 900
    ptx::copies_commit();
#endif
  }
  /// Every warp is done with the step before, whose stage may be overwritten; below compute capability 9.0 this step's tiles are there.
  __device__ void begin_step() const {
#if __CUDA_ARCH__ < 900
    ptx::copies_wait<0>();
#endif
    __syncthreads();
  }
  __device__ void wait(int step) const {
#if __CUDA_ARCH__ >= 900
    ptx::mbarrier_wait(barrier(step), step / kStages & 1);
#endif
  }
};

}  // namespace lethe::matrix_state
