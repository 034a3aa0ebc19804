#pragma once
// How the kernels of the delta rule with a gate a row hold numbers in 16 bits: as float16 divided by powers of two, or as two numbers of bfloat16.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

#include "optimized/cuda/matrix_state/delta_keys.hpp"
#include "optimized/cuda/matrix_state/delta_parts.cuh"
#include "optimized/cuda/ptx/transpose.cuh"

namespace lethe::matrix_state {

/// Rows' numbers are float16 times powers of two, at most 2^15: products of two are 2^28 times those of the rows over their units.
constexpr float kRowScale = 0x1p14f;

/// The power of two that numbers of at most `largest` are divided by. Its reciprocal times kRowScale is a float too.
__device__ __forceinline__ float row_unit(float largest) { return power_of_two_below(fmaxf(largest, 0x1p-100f)); }

/// Two floats in bfloat16, and what that leaves.
struct BrainParts {
  uint32_t high, low;

  __device__ __forceinline__ BrainParts(float x, float y) {
    high = pack<__nv_bfloat16>(x, y);
    const float2 rounded = unpack<__nv_bfloat16>(high);
    low = pack<__nv_bfloat16>(x - rounded.x, y - rounded.y);
  }
};

/// Two numbers of Element's type each: the larger ones of `most` and the magnitudes in `word`.
template <typename Element>
__device__ __forceinline__ uint32_t larger_pair(uint32_t most, uint32_t word) {
  using Pair = std::conditional_t<std::is_same_v<Element, __half>, __half2, __nv_bfloat162>;
  Pair pairs[2];
  memcpy(&pairs[0], &most, 4);
  memcpy(&pairs[1], &word, 4);
  const Pair larger = __hmax2(pairs[0], __habs2(pairs[1]));
  memcpy(&most, &larger, 4);
  return most;
}

/// What numbers are multiplied with to be float16, and float16 to be the numbers.
struct WarpUnit {
  float inverse, unit;

  /// A warp: of its lanes' largest number.
  __device__ __forceinline__ explicit WarpUnit(float largest) {
    const float power = row_unit(__uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(largest))));
    inverse = kRowScale * reciprocal_of_power(power);
    unit = power * (1.0f / kRowScale);
  }
};

}  // namespace lethe::matrix_state
