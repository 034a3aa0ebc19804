#pragma once

#include <cstdint>

namespace lethe::cpu {

/// Rows of SwiGLU, h = silu(a) · b; data of one storage type.
struct SwigluRows {
  int64_t width;
  const void* gate_and_up;  ///< rows [a | b] of 2·width
  int64_t pitch;            ///< of gate_and_up, in elements
  const void* grad_values;  ///< rows of width; null in the forward
  int64_t grad_pitch;
  void* result;  ///< forward: h, contiguous rows of width; backward: [da | db], of 2·width
};

/// The rows from `begin` to `end`, for each storage type (storage_index).
struct SwigluKernels {
  void (*forward[4])(const SwigluRows&, int64_t begin, int64_t end);
  void (*backward[4])(const SwigluRows&, int64_t begin, int64_t end);
};
const SwigluKernels& swiglu_kernels();

}  // namespace lethe::cpu
