#pragma once
// Rows shared among threads.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

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

}  // namespace lethe::cpu
