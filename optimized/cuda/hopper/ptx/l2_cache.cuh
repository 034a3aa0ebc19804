#pragma once
// The L2 cache: prefetches by the asynchronous copy engine, which nothing waits for, and copies of what is not read again. One thread issues; no result
// depends on any of it.

#include "optimized/cuda/hopper/ptx/copy.cuh"

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

/// For load_tile_as: lines that are the first to be evicted, or such as any.
__device__ inline uint64_t cache_policy(bool evict_first) {
  uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return evict_first ? first : normal;
}

/// load_tile by a policy.
__device__ inline void load_tile_as(uint64_t policy, void* shared, const CUtensorMap* map, uint64_t* barrier, int c0,
                                    int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4, %5, %6}], [%2], %7;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3),
      "l"(policy)
      : "memory");
}

}  // namespace lethe::ptx
