#pragma once

#include <cstdint>

namespace lethe::cpu {

/// Rows of scaled_heads, y_h = x_h · s_h, all contiguous; what a direction lacks is null.
struct ScaledHeadsRows {
  int64_t heads, head_dim;
  const void* x;      ///< [heads · head_dim] a row, as values and their gradients
  const void* scale;  ///< [heads] a row, float32 (float64)
  void* values;       ///< of the forward
  const void* grad_values;
  void *grad_x, *grad_scale;
};

/// Rows of gated_skip, y = (o + skip ∘ x) ∘ silu(gate), all contiguous; what a direction lacks is null.
struct GatedSkipRows {
  int64_t heads, head_dim;
  const void *o, *x, *gate;  ///< [heads · head_dim] a row, as values and gradients
  const void* skip;          ///< [heads], float32 (float64)
  void* values;              ///< of the forward
  const void* grad_values;
  void *grad_o, *grad_x, *grad_gate;
};

/// The rows from `begin` to `end`, for each storage type (storage_index). `skip_backward` adds the gradient of skip to `grad_skip`, float32
/// (float64).
struct HeadsKernels {
  void (*scaled_forward[4])(const ScaledHeadsRows&, int64_t begin, int64_t end);
  void (*scaled_backward[4])(const ScaledHeadsRows&, int64_t begin, int64_t end);
  void (*skip_forward[4])(const GatedSkipRows&, int64_t begin, int64_t end);
  void (*skip_backward[4])(const GatedSkipRows&, int64_t begin, int64_t end, void* grad_skip);
};
const HeadsKernels& heads_kernels();

}  // namespace lethe::cpu
