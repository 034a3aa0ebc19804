#pragma once
// Instances of the kernels: a type and a head dim.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "optimized/cuda/attention.hpp"

namespace lethe::ampere {

/// Calls `call.operator()<Element, kDim>()` of the instance whose tiles hold rows of both head dims, with zeros after them.
template <typename Call>
void for_dimension(Dtype dtype, const Shape& shape, Call call) {
  if (dtype == Dtype::kFloat32) {
    const int64_t dim = std::max(shape.key_dim, shape.value_dim);
    if (dim <= 32) return call.template operator()<float, 32>();
    if (dim <= 64) return call.template operator()<float, 64>();
    return call.template operator()<float, 128>();
  }
  const auto for_type = [&]<int kDim> {
    dtype == Dtype::kBFloat16 ? call.template operator()<__nv_bfloat16, kDim>()
                              : call.template operator()<__half, kDim>();
  };
  const int64_t dim = std::max(shape.key_dim, shape.value_dim);
  if (dim <= 32) for_type.template operator()<32>();
  else if (dim <= 64) for_type.template operator()<64>();
  else if (dim <= 96) for_type.template operator()<96>();
  else if (dim <= 128) for_type.template operator()<128>();
  else for_type.template operator()<256>();
}

}  // namespace lethe::ampere
