#pragma once
// Rows shared among threads.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>

namespace lethe::cpu {

/// The place of a dtype in the tables of the layers' kernels: float64, float32, bfloat16, float16.
inline int storage_index(at::ScalarType dtype) {
  return dtype == at::kDouble ? 0 : dtype == at::kFloat ? 1 : dtype == at::kBFloat16 ? 2 : 3;
}

/// work(begin, end) over ranges of the rows, each large enough for a thread.
template <typename Work>
void for_rows(int64_t rows, int64_t width, const Work& work) {
  constexpr int64_t kElements = 32768;  // as Torch's own elementwise loops
  at::parallel_for(0, rows, std::max<int64_t>(1, kElements / std::max<int64_t>(1, width)), work);
}

/// The sum over rows of what work(begin, end, partial) adds to `partial`, a zeroed [width] of `dtype`. The rows' division depends on their number
/// alone: the sum has one order with any number of threads.
template <typename Work>
at::Tensor sum_over_rows(int64_t rows, int64_t width, const at::TensorOptions& options, const Work& work) {
  constexpr int64_t kMostParts = 64, kFewestRows = 32;
  const int64_t part_rows = std::max(kFewestRows, (rows + kMostParts - 1) / kMostParts);
  const int64_t parts = std::max<int64_t>(1, (rows + part_rows - 1) / part_rows);
  const at::Tensor partials = at::zeros({parts, width}, options);
  std::byte* const data = static_cast<std::byte*>(partials.mutable_data_ptr());
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      work(part * part_rows, std::min(rows, (part + 1) * part_rows), data + part * width * partials.element_size());
  });
  const at::Tensor sum = partials[0].clone();
  for (int64_t part = 1; part < parts; ++part) sum.add_(partials[part]);
  return sum;
}

}  // namespace lethe::cpu
