#pragma once
// Larger numbers of packed pairs, whatever their signs.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace lethe::ptx {

/// Of each half the larger magnitude of two, with any sign; of a NaN and a number the number.
template <typename Element>
__device__ inline uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
  uint32_t result;
  if constexpr (std::is_same_v<Element, __half>)
    asm volatile("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  else asm volatile("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

}  // namespace lethe::ptx
