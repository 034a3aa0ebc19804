#pragma once
// Asynchronous copies of optimized/cuda/ptx/copy_async.cuh that an mbarrier counts.

#include "optimized/cuda/ptx/address.cuh"

namespace lethe::ptx {

/// An arrival, which the barrier expects, once all of the thread's copies so far are in shared memory.
__device__ inline void copies_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

}  // namespace lethe::ptx
