#pragma once
// Transposition in the registers of a warp: compute capability 7.5 and above.

#include <cstdint>

namespace lethe::ptx {

/// Of an 8×8 matrix of 16-bit elements, of which lane l holds elements 2(l%4), 2(l%4)+1 of row l/4, the same of column l/4.
__device__ inline uint32_t transposed(uint32_t elements) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(elements));
  return result;
}

}  // namespace lethe::ptx
