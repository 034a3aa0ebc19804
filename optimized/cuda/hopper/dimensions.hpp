#pragma once
// Instances of the kernels: a type and a head dim.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "optimized/cuda/attention.hpp"

namespace lethe::hopper {

/// Columns of the instance whose tiles hold rows of both head dims. Past a row's end the copy engine loads zeros and stores nothing.
constexpr int64_t instance_dim(const Shape& shape) {
  const int64_t dim = std::max(shape.key_dim, shape.value_dim);
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

/// Whether an instance can compute the gate's gradient from sums of dS in 16 bits; each can from sums in float.
constexpr bool has_16_bit_sums(int64_t instance_dim) { return instance_dim <= 128; }

/// Bytes that the backward's tiles of keys read of a query: its rows of Q and dO, and the float row of dQ.
constexpr int64_t query_bytes(const Shape& shape) {
  return 2 * (shape.key_dim + shape.value_dim) + 4 * instance_dim(shape);
}

/// Calls `call.operator()<Element, kDim>()` of that instance.
template <typename Call>
void for_instance(Dtype dtype, const Shape& shape, Call call) {
  const auto of_dim = [&]<int kDim> {
    dtype == Dtype::kBFloat16 ? call.template operator()<__nv_bfloat16, kDim>()
                              : call.template operator()<__half, kDim>();
  };
  const int64_t dim = instance_dim(shape);
  if (dim == 64) of_dim.template operator()<64>();
  else if (dim == 128) of_dim.template operator()<128>();
  else of_dim.template operator()<256>();
}

}  // namespace lethe::hopper
