#pragma once
// Tensors as the arguments of optimized/cuda/layers/layers.hpp.

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include "optimized/cuda/layers/layers.hpp"
#include "optimized/operators/rows.hpp"
#include "optimized/torch/dtype.hpp"

namespace lethe::cuda {

/// The rows stay valid as long as the TensorRows.
inline layers::Rows device_rows(const TensorRows& rows) { return {rows.data(), rows.pitch}; }

inline at::Tensor workspace_of(size_t bytes, const at::Tensor& like) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

}  // namespace lethe::cuda
