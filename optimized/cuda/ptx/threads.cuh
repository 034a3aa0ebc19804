#pragma once
// Barriers of some of a CTA's warps.

namespace lethe::ptx {

/// Waits for kThreads threads, whole warps, at barrier kId of 1 to 15.
template <int kId, int kThreads>
__device__ inline void sync_threads() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

}  // namespace lethe::ptx
