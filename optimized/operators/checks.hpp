#pragma once
// Checks that every operator shares: "name: expected …, found …", with the argument's name in the caller's terms. They read a tensor's properties,
// never its numbers, and so work on symbolic shapes and on every device, in O(1).

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>

namespace lethe {

/// That `tensor` has `rank` dimensions. Call it before check_shape.
///
/// reads   layout: the dimensions for the message, such as "[B,T,H,K]"
/// throws  c10::Error "name: expected <rank> dimensions <layout>, found <rank>"
inline void check_rank(const char* name, const at::Tensor& tensor, int64_t rank, const char* layout) {
  TORCH_CHECK(tensor.dim() == rank, name, ": expected ", rank, " dimensions ", layout, ", found ", tensor.dim());
}

/// float64 for float64, else float32: the dtype of gates, states and sums.
inline at::ScalarType accumulation_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// That `tensor` is one, and strided: neither nested, sparse nor opaque. Strides may be any. The public operators check it before the dispatcher,
/// which would throw an error of its own.
///
/// throws  c10::Error "name: expected a tensor, found none", or "name: expected a strided layout, found <layout>"
inline void check_layout(const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), name, ": expected a tensor, found none");
  TORCH_CHECK(!tensor.is_nested(), name, ": expected a strided, not nested tensor, found a nested one");
  TORCH_CHECK(tensor.layout() == at::kStrided, name, ": expected a strided layout, found ", tensor.layout());
}

/// That `tensor` is on the device of `other`, the argument `other_name`, and of `dtype`, which need not be the other's.
///
/// throws  c10::Error "name: expected device <device> as query, found <device>", or "name: expected dtype <dtype>, found <dtype>"
inline void check_like(const char* name, const at::Tensor& tensor, at::ScalarType dtype, const at::Tensor& other,
                       const char* other_name = "query") {
  TORCH_CHECK(tensor.device() == other.device(), name, ": expected device ", other.device(), " as ", other_name,
              ", found ", tensor.device());
  TORCH_CHECK(tensor.scalar_type() == dtype, name, ": expected dtype ", dtype, ", found ", tensor.scalar_type());
}

/// That `tensor` has exactly this shape; nothing is broadcast.
///
/// throws  c10::Error "name: expected shape <shape>, found <shape>"
inline void check_shape(const char* name, const at::Tensor& tensor, c10::SymIntArrayRef shape) {
  TORCH_CHECK(tensor.sym_sizes() == shape, name, ": expected shape ", shape, ", found ", tensor.sym_sizes());
}

/// That `scale`, of the logits or of a state's read, is neither infinite nor NaN in `dtype`, in which it multiplies; zero and negative ones are
/// allowed.
///
/// throws  c10::Error "scale: expected a finite number, found <scale>", or "… a finite number in float32, …"
inline void check_scale(double scale, at::ScalarType dtype) {
  TORCH_CHECK(std::isfinite(scale), "scale: expected a finite number, found ", scale);
  TORCH_CHECK(dtype == at::kDouble || std::abs(scale) <= std::numeric_limits<float>::max(),
              "scale: expected a finite number in float32, found ", scale);
}

/// That `epsilon`, which a norm adds to a mean of squares, is neither negative, infinite nor NaN, in float32 either.
///
/// throws  c10::Error "epsilon: expected a finite number >= 0, found <epsilon>"
inline void check_epsilon(double epsilon) {
  TORCH_CHECK(epsilon >= 0 && epsilon <= std::numeric_limits<float>::max(),
              "epsilon: expected a finite number >= 0, found ", epsilon);
}

/// That `tensor` is of a dtype that queries, keys and values may have.
///
/// throws  c10::Error "name: expected dtype float64, float32, bfloat16 or float16, found <dtype>"
inline void check_floating(const char* name, const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, name,
              ": expected dtype float64, float32, bfloat16 or float16, found ", dtype);
}

}  // namespace lethe
