#pragma once
// Instances of the kernels: a type and a head dim.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "optimized/cuda/attention.hpp"

namespace lethe::hopper {

/// Columns of the instance whose tiles hold rows of both head dims. Past a row's end the copy engine loads zeros and stores nothing.
constexpr int64_t instance_dim(const Shape& shape) { return std::max(shape.key_dim, shape.value_dim) <= 64 ? 64 : 128; }

/// Bytes that the backward's tiles of keys read of a query: its rows of Q and dO, and the float row of dQ.
constexpr int64_t query_bytes(const Shape& shape) {
  return 2 * (shape.key_dim + shape.value_dim) + 4 * instance_dim(shape);
}

/// Calls `call.operator()<Element, kDim>()` of that instance.
template <typename Call>
void for_instance(Dtype dtype, const Shape& shape, Call call) {
  const bool bfloat16 = dtype == Dtype::kBFloat16;
  if (instance_dim(shape) == 64)
    bfloat16 ? call.template operator()<__nv_bfloat16, 64>() : call.template operator()<__half, 64>();
  else bfloat16 ? call.template operator()<__nv_bfloat16, 128>() : call.template operator()<__half, 128>();
}

}  // namespace lethe::hopper
