#pragma once
// Global memory on its way before it is read: compute capability 8.0 and above.

namespace lethe::ptx {

/// Begins to bring the line of `address` to the second-level cache.
__device__ inline void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

}  // namespace lethe::ptx
