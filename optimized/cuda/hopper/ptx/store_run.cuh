#pragma once
// The asynchronous copy engine: a 1-D run from shared to global memory. One thread issues.

#include "optimized/cuda/hopper/ptx/copy.cuh"

namespace lethe::ptx {

/// shared → global, `bytes` of a contiguous run; both addresses and `bytes` multiples of 16. Belongs to the thread's open bulk group.
__device__ inline void store_run(void* global, const void* shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

}  // namespace lethe::ptx
