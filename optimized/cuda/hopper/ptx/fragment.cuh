#pragma once
// Register fragments: 8×8 matrices from registers to shared memory, conversion to 16 bits, exp2 and log2.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "optimized/cuda/hopper/ptx/barrier.cuh"

namespace lethe::ptx {

/// 2^x on the special-function unit: relative error about 2⁻²², −inf gives 0, subnormal results are 0.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log₂ x on the special-function unit; 0 gives −inf.
__device__ inline float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats rounded to nearest into one register, `low` in the lower half.
template <typename Element>
__device__ inline uint32_t pack(float low, float high);

template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// The two halves of a packed register as floats, exactly.
template <typename Element>
__device__ inline float2 unpack(uint32_t packed);

template <>
__device__ inline float2 unpack<__nv_bfloat16>(uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
}

/// The same register as the vector type of float16 arithmetic.
__device__ inline __half2 halves(uint32_t packed) {
  __half2 pair;
  memcpy(&pair, &packed, sizeof pair);
  return pair;
}

template <>
__device__ inline float2 unpack<__half>(uint32_t packed) {
  return __half22float2(halves(packed));
}

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

/// A float of global memory. Asked for here, however late it is used.
__device__ inline float load_global(const float* address) {
  float number;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(number) : "l"(address));
  return number;
}

/// A float of shared memory.
__device__ inline float load_float(uint32_t address) {
  float number;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(address) : "memory");
  return number;
}

/// Two of them, side by side; the address is a multiple of 8.
__device__ inline float2 load_pair(uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

/// Byte offset of element (row, column) in a panel of 64 columns of 16-bit elements stored as the copy engine's 128-byte
/// swizzle does: rows of 128 bytes, whose 16-byte chunk c lies at c XOR (row mod 8).
__device__ inline uint32_t swizzled_offset(uint32_t row, uint32_t column) {
  return row * 128 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}

}  // namespace lethe::ptx
