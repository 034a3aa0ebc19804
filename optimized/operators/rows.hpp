#pragma once
// Tensors as matrices of rows: all dimensions but the last one are rows, a constant distance apart.

#include <ATen/core/Tensor.h>

namespace lethe {

/// A tensor [..., d] whose row n begins n · pitch elements after the first.
struct TensorRows {
  at::Tensor tensor;
  int64_t pitch = 0;

  const void* data() const { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
};

/// `tensor` itself where its last dimension is contiguous and its rows are a constant distance apart (0 for one row that is expanded), else a copy.
///
/// reads  [..., d], or undefined: no rows
inline TensorRows rows_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const int64_t last = tensor.dim() - 1, width = tensor.size(last);
  bool fits = width == 1 || tensor.stride(last) == 1;
  int64_t pitch = width, rows = 0;  // rows: of the dimensions from `dim` on that have more than one entry
  for (int64_t dim = last - 1; dim >= 0; --dim) {
    if (tensor.size(dim) == 1) continue;
    if (rows == 0) {
      pitch = tensor.stride(dim);
      rows = tensor.size(dim);
    } else {
      fits = fits && tensor.stride(dim) == pitch * rows;
      rows *= tensor.size(dim);
    }
  }
  if (fits) return {tensor, pitch};
  return {tensor.clone(at::MemoryFormat::Contiguous), width};
}

/// The number of rows of [..., d].
inline int64_t row_count(const at::Tensor& tensor) {
  return tensor.size(-1) == 0 ? 0 : tensor.numel() / tensor.size(-1);
}

}  // namespace lethe
