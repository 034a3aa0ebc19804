#pragma once
// A number in global memory that publishes earlier writes to another CTA, stored under a condition.

#include <cstdint>

namespace lethe::ptx {

/// As store_release, by the threads with `stores`. No branch: products of a warpgroup may be in flight, and would be waited for before one.
__device__ inline void store_release_if(bool stores, int32_t* number, int32_t value) {
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; @p st.release.gpu.global.s32 [%0], %1; }" ::"l"(number),
               "r"(value), "r"(static_cast<uint32_t>(stores))
               : "memory");
}

}  // namespace lethe::ptx
