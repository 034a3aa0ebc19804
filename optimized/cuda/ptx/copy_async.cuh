#pragma once
// Asynchronous copies of 16 bytes a thread, global → shared, past the registers: compute capability 8.0 and above.

#include <cstdint>

namespace lethe::ptx {

/// Both addresses are multiples of 16. Reads nothing and writes zeros unless `valid`. Past the L1 cache.
__device__ inline void copy_chunk(uint32_t shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}

/// The same of 4 bytes.
__device__ inline void copy_word(uint32_t shared, const void* global, bool valid = true) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(__cvta_generic_to_global(global)),
               "r"(valid ? 4 : 0)
               : "memory");
}

/// Closes the thread's group of copies.
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until all but the thread's newest kPending groups are in shared memory. For other threads' copies a barrier must follow.
template <int kPending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lethe::ptx
