#pragma once
// Arithmetic on two float16 numbers at once.

#include <cstdint>

namespace lethe::ptx {

__device__ inline uint32_t multiply_halves(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace lethe::ptx
