#pragma once
// Register fragments: 8×8 matrices from registers to shared memory, and floats from there.

#include "optimized/cuda/hopper/ptx/barrier.cuh"

namespace lethe::ptx {

/// Four 8×8 matrices of 16-bit elements, one 16-byte row address a lane: lanes 8m..8m+7 address the rows of matrix m.
/// In registers lane l holds elements 2(l%4), 2(l%4)+1 of row l/4; with `_transposed`, of column l/4.
__device__ inline void store_matrices(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0), "r"(r1),
               "r"(r2), "r"(r3)
               : "memory");
}

__device__ inline void store_matrices_transposed(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

/// A float of shared memory.
__device__ inline float load_float(uint32_t address) {
  float number;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(address) : "memory");
  return number;
}

/// Two floats, side by side; the address is a multiple of 8.
__device__ inline float2 load_pair(uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

/// Byte offset of element (row, column) in a panel of 64 columns of 16-bit elements in the copy engine's 128-byte swizzle: rows of 128 bytes, whose
/// 16-byte chunk c is at c XOR (row mod 8).
__device__ inline uint32_t swizzled_offset(uint32_t row, uint32_t column) {
  return row * 128 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}

}  // namespace lethe::ptx
