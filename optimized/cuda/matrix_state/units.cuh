#pragma once
// Powers of two that bring float numbers into float16's range, and reductions over the four lanes that share a row.

#include <cstdint>

#include "optimized/cuda/matrix_state/sweep.hpp"

namespace lethe::matrix_state {

/// The largest power of two that is at most x, from 2^-125 to 2^125.
__device__ inline float power_of_two_below(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7f800000u;
  return __uint_as_float(min(max(bits, 0x01000000u), 0x7e000000u));
}

__device__ inline float reciprocal_of_power(float power) {
  return __uint_as_float(0x7f000000u - __float_as_uint(power));
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

}  // namespace lethe::matrix_state
