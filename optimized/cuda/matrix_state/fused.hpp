#pragma once
// All gradients of a state of at most 64 × 64 in two kernels (fused_states.cuh, fused_gradients.cuh).

#include "optimized/cuda/matrix_state/sweep.hpp"

namespace lethe::matrix_state {

/// With P_ij = q_i·k_j, dP_ij = dO_i·v_j, S the state before the chunk and R the gradient of the state after it, of tokens of one chunk:
///
///   dq_i = Σ_{j ≤ i} D_ij dP_ij k_j + E_i S dO_i          dk_j = Σ_{i ≥ j} D_ij dP_ij q_i + E'_j R v_j
///   dv_j = Σ_{i ≥ j} D_ij P_ij dO_i + E'_j Rᵀ k_j         R ← E_C R + Σ_i D_iC q_i dO_iᵀ
///
/// E_i, D_iC: the gates from the chunk's beginning to i, with that of its first token and without; E'_j those from j to the next chunk's first token.
struct FusedArguments {
  CUtensorMap maps[4];  ///< of query, key, value and grad_values, for compute capability 9.0 and above
  Operand query, key, value, grad_values;
  Gates gate;
  void *grad_query, *grad_key, *grad_value;  ///< [B, T, H, ·] contiguous
  float* grad_gate;                          ///< [B, T, H] contiguous
  int64_t length;
  int batch, heads, rows, columns;
  float scale;
  const float *initial, *grad_last;  ///< [B, H, rows, columns] contiguous; null: zeros
  float* grad_initial;               ///< null: not wanted
  uint4* chunk_states;               ///< [B·H, chunks, 4, kComputing]: S of each chunk, 16-bit right operands of S dO
  float* state_units;                ///< [B·H, chunks, kWarps]: what their rows of 16 are divided by
  SegmentStates before, after;       ///< what segments hand on: S, and R
};

/// Whether the two kernels run: a state of at most 64 × 64, where a CTA of the current device can have their shared memory, more than 99 KB.
bool is_fused(const Shape& shape);

/// fused.cu: the two kernels, on the stream.
void launch_fused(FusedArguments arguments, Dtype dtype, cudaStream_t stream);

}  // namespace lethe::matrix_state
