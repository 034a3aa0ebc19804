#pragma once
// Copies to the L2 cache, of what later loads read.

#include <cuda.h>

#include <cstdint>

namespace lethe::ptx {

/// global → L2 cache: the box at (c0, c1, c2, c3), as load_tile (copy.cuh) has it. Nothing tells when it is there.
__device__ inline void prefetch_tile(const CUtensorMap* map, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(reinterpret_cast<uint64_t>(map)),
      "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

}  // namespace lethe::ptx
