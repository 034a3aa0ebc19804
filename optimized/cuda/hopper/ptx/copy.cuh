#pragma once
// The asynchronous copy engine: 4-D tensor tiles and 1-D runs between global and shared memory. One thread issues.

#include <cuda.h>

#include "optimized/cuda/hopper/ptx/barrier.cuh"

namespace lethe::ptx {

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

/// global → shared: the box at (c0, c1, c2, c3), innermost first; outside the tensor it reads zeros. Counts the bytes of the whole box on `barrier`.
/// The shared address is aligned as the map's swizzle requires (1024 bytes for 128-byte rows).
__device__ inline void load_tile(void* shared, const CUtensorMap* map, uint64_t* barrier, int c0, int c1, int c2,
                                 int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// shared → global, clipped at the tensor's edges; belongs to the thread's open bulk group.
__device__ inline void store_tile(const CUtensorMap* map, const void* shared, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(shared_address(shared)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}

/// global += shared in the map's type, rounded to it; otherwise as store_tile.
__device__ inline void reduce_add_tile(const CUtensorMap* map, const void* shared, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          reinterpret_cast<uint64_t>(map)),
      "r"(shared_address(shared)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

/// global → shared, `bytes` of a contiguous run; both addresses and `bytes` multiples of 16.
__device__ inline void load_run(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

/// global += shared, elementwise over `bytes` of floats; the order among CTAs is open.
__device__ inline void reduce_add_run(float* global, const float* shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(global)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}

/// Closes the thread's bulk group of stores and reductions.
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until all but the newest kPending groups have read their shared memory.
template <int kPending>
__device__ inline void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Waits until all but the newest kPending groups are complete and visible.
template <int kPending>
__device__ inline void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lethe::ptx
