#pragma once
// Matrix products of weights that are zero where a query does not see a key.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "optimized/cpu/gemm.hpp"
#include "optimized/cpu/problem.hpp"
#include "optimized/cpu/tile_kernels.hpp"

namespace lethe::cpu {

/// A matrix as it is, or a copy with zeros in the place of NaN and ∞ where it has any.
template <typename Scalar>
class FinitePart {
 public:
  FinitePart(int64_t rows, int64_t columns, const Scalar* matrix, int64_t stride, bool known_finite)
      : data_(matrix), stride_(stride) {
    if (known_finite || tile_kernels<Scalar>().all_finite(rows, columns, matrix, stride)) return;
    copy_.resize(rows * columns);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const Scalar number = matrix[i / columns * stride + i % columns];
      copy_[i] = std::isfinite(number) ? number : Scalar(0);
    }
    data_ = copy_.data();
    stride_ = columns;
  }
  FinitePart(const FinitePart&) = delete;
  FinitePart& operator=(const FinitePart&) = delete;

  const Scalar* data() const { return data_; }
  int64_t stride() const { return stride_; }
  bool is_whole() const { return copy_.empty(); }

 private:
  const Scalar* data_;
  int64_t stride_;
  std::vector<Scalar> copy_;
};

/// c [m,n] += alpha · op(a) [m,k] · b [k,n] as multiply, where a zero of `a` marks an unseen pair: nothing passes it, not even NaN or ∞, which a
/// product with 0 would turn into NaN.
///
/// reads  known_finite: whether b needs no check
/// cost   that of multiply and one pass over b; where b is not finite, a copy of it, and the numbers that are not finite one by one
template <typename Scalar>
void add_seen_product(Transpose op_a, int64_t m, int64_t n, int64_t k, Scalar alpha, const Scalar* a, int64_t a_stride,
                      const Scalar* b, int64_t b_stride, bool known_finite, Scalar* c, int64_t c_stride) {
  const FinitePart<Scalar> finite(k, n, b, b_stride, known_finite);
  multiply(op_a, Transpose::kNo, m, n, k, alpha, a, a_stride, finite.data(), finite.stride(), Scalar(1), c, c_stride);
  if (finite.is_whole()) return;
  for (int64_t row = 0; row < k; ++row) {
    for (int64_t d = 0; d < n; ++d) {
      const Scalar number = b[row * b_stride + d];
      if (std::isfinite(number)) continue;
      for (int64_t i = 0; i < m; ++i) {
        const Scalar weight = op_a == Transpose::kNo ? a[i * a_stride + row] : a[row * a_stride + i];
        if (weight != 0) c[i * c_stride + d] += alpha * weight * number;
      }
    }
  }
}

/// Whether all of [B, T, H, D], as HeadRows reads it, is finite.
template <typename Scalar>
bool all_finite(const at::Tensor& tensor) {
  const HeadRows<const Scalar> rows(tensor);
  std::atomic<bool> finite{true};
  if (tensor.is_non_overlapping_and_dense()) {
    at::parallel_for(0, tensor.numel(), int64_t{1} << 15, [&](int64_t begin, int64_t end) {
      if (!tile_kernels<Scalar>().all_finite(1, end - begin, rows.at(0, 0) + begin, 0)) finite = false;
    });
    return finite;
  }
  at::parallel_for(0, tensor.size(0) * tensor.size(2), 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      if (!tile_kernels<Scalar>().all_finite(tensor.size(1), tensor.size(3), rows.at(head, 0), rows.stride()))
        finite = false;
  });
  return finite;
}

}  // namespace lethe::cpu
