#pragma once
// Prefetches into the L2 cache by the asynchronous copy engine. One thread issues; nothing is waited for, and no result depends on them.

#include <cuda.h>

#include <cstdint>

namespace lethe::ptx {

/// The box at (c0, c1, c2, c3) of a tensor, innermost first; what is outside the tensor is left out.
__device__ inline void prefetch_tile(const CUtensorMap* map, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(reinterpret_cast<uint64_t>(map)),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// `bytes` of a contiguous run; the address and `bytes` multiples of 16.
__device__ inline void prefetch_run(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}

}  // namespace lethe::ptx
