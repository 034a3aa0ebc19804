#pragma once
// Conversion to and from 16 bits, exp2 and log2, and an eager load: available on every GPU from compute capability 8.0 on.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace lethe {

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

/// A float of global memory. The load is issued here, however late the number is used.
__device__ inline float load_global(const float* address) {
  float number;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(number) : "l"(address));
  return number;
}

/// Four floats, the same.
__device__ inline float4 load_global4(const float* address) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(address));
  return v;
}

}  // namespace lethe
