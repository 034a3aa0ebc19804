#pragma once
// Instances of the kernels: a type and a head dim.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "optimized/cuda/ampere/sizes.hpp"
#include "optimized/cuda/attention.hpp"

namespace lethe::ampere {

/// Calls `call.operator()<Element, kDim>()` of the instance that runs a shape.
template <typename Call>
void for_dimension(Dtype dtype, const Shape& shape, Call call) {
  for_dim(dim_of_instance(shape, dtype), [&]<int kDim> {
    if (dtype == Dtype::kBFloat16) return call.template operator()<__nv_bfloat16, kDim>();
    if (dtype == Dtype::kFloat16) return call.template operator()<__half, kDim>();
    if constexpr (has_floats(kDim)) call.template operator()<float, kDim>();
  });
}

}  // namespace lethe::ampere
