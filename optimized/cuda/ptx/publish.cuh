#pragma once
// A number in global memory that publishes earlier writes to another CTA, stored under a condition; and one in shared memory, to the CTA's own warps.

#include <cstdint>

#include "optimized/cuda/ptx/address.cuh"

namespace lethe::ptx {

/// As store_release, by the threads with `stores`. No branch: products of a warpgroup may be in flight, and would be waited for before one.
__device__ inline void store_release_if(bool stores, int32_t* number, int32_t value) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.release.gpu.global.s32 [%0], %1; }" ::"l"(number),
               "r"(value), "r"(static_cast<uint32_t>(stores))
               : "memory");
}

__device__ inline int32_t load_acquire_shared(const int32_t* number) {
  int32_t value;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(shared_address(number)) : "memory");
  return value;
}

__device__ inline void store_release_shared(int32_t* number, int32_t value) {
  asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(shared_address(number)), "r"(value) : "memory");
}

}  // namespace lethe::ptx
