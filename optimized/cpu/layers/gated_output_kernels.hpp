#pragma once

#include <cstdint>

namespace lethe::cpu {

/// Rows of an attention layer's output, y = RMSNorm of each head(o) ∘ σ(gate); rows without a pitch are contiguous.
struct GatedOutputRows {
  int64_t heads, head_dim;
  double epsilon;
  const void* o;
  const void* gate;  ///< null: no gate
  int64_t gate_pitch;
  const void* norm;         ///< [heads · head_dim], null: no norm
  void* values;             ///< of the forward
  const void* grad_values;  ///< of the backward, as what follows
  int64_t grad_pitch;
  void *grad_o, *grad_gate;
};

/// The rows from `begin` to `end`, for each storage type (storage_index). `backward` adds the norm's gradient to `grad_norm`, float32 (float64), and
/// needs head_dim such numbers of scratch memory.
struct GatedOutputKernels {
  void (*forward[4])(const GatedOutputRows&, int64_t begin, int64_t end);
  void (*backward[4])(const GatedOutputRows&, int64_t begin, int64_t end, void* grad_norm, void* scratch);
};
const GatedOutputKernels& gated_output_kernels();

}  // namespace lethe::cpu
