#pragma once
// A tensor's dtype as the kernels' arguments name it.

#include <c10/core/ScalarType.h>

#include "reference/problem.hpp"

namespace lethe {

/// Of the four floating-point dtypes that the operators accept.
inline Dtype dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return Dtype::kFloat64;
    case at::kFloat: return Dtype::kFloat32;
    case at::kBFloat16: return Dtype::kBFloat16;
    default: return Dtype::kFloat16;
  }
}

}  // namespace lethe
