#pragma once
// Refusals that every operator shares: "name: expected …, found …". They work on symbolic shapes too.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace lethe {

inline void check_rank(const char* name, const at::Tensor& tensor, int64_t rank, const char* layout) {
  TORCH_CHECK(tensor.dim() == rank, name, ": expected ", rank, " dimensions ", layout, ", found ", tensor.dim());
}

inline void check_layout(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == at::kStrided, name, ": expected a strided layout, found ", tensor.layout());
}

/// The device of `query`, and the given dtype.
inline void check_like(const char* name, const at::Tensor& tensor, at::ScalarType dtype, const at::Tensor& query) {
  TORCH_CHECK(tensor.device() == query.device(), name, ": expected device ", query.device(), " as query, found ",
              tensor.device());
  TORCH_CHECK(tensor.scalar_type() == dtype, name, ": expected dtype ", dtype, ", found ", tensor.scalar_type());
}

inline void check_shape(const char* name, const at::Tensor& tensor, c10::SymIntArrayRef shape) {
  TORCH_CHECK(tensor.sym_sizes() == shape, name, ": expected shape ", shape, ", found ", tensor.sym_sizes());
}

inline void check_scale(double scale) {
  TORCH_CHECK(std::isfinite(scale), "scale: expected a finite number, found ", scale);
}

inline void check_floating(const char* name, const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, name,
              ": expected dtype float64, float32, bfloat16 or float16, found ", dtype);
}

}  // namespace lethe
