#pragma once
// Tensors as the arguments of optimized/cuda/layers/layers.hpp.

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include "optimized/cuda/layers/layers.hpp"
#include "optimized/operators/rows.hpp"

namespace lethe::cuda {

inline Dtype dtype_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble: return Dtype::kFloat64;
    case at::kFloat: return Dtype::kFloat32;
    case at::kBFloat16: return Dtype::kBFloat16;
    default: return Dtype::kFloat16;
  }
}

/// The rows stay valid as long as the TensorRows.
inline layers::Rows device_rows(const TensorRows& rows) { return {rows.data(), rows.pitch}; }

inline at::Tensor workspace_of(size_t bytes, const at::Tensor& like) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

}  // namespace lethe::cuda
