#pragma once
// What a pass of the scan kernels reads and writes (scan.cuh).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "optimized/cuda/attention.hpp"

namespace lethe::matrix_state {

constexpr int kSegment = 64;  ///< tokens between two states that the backward keeps

/// The passes over a head's tokens. S_t is the state after token t, S̄_t the decayed one before its write; n_t what is written, β_t r_t with the
/// delta rule; R_t is the gradient of S_t, R̄_t that of S̄_t.
enum class Scan {
  kForward,  ///< o = Sᵀq, the last state
  kQuery,    ///< dq = S dO; r; the state after every segment
  kReverse,  ///< last token first: R n, the gradients of v and β, the gradient of the initial state, ⟨S, R⟩ at the ends of segments
  kCorrection,  ///< delta rule: dk = R n − S̄ m, m = β Rᵀk
};

struct ScanArguments {
  Dtype dtype,
      values_dtype;  ///< of query, key, value, grad_values and the results that are void*: float32, bfloat16 or float16
  int64_t length;
  int batch, heads, rows, columns;  ///< multiples of 8
  Operand query, key, value, grad_values;
  Operand key_gate, value_gate;  ///< logarithms in float; null: absent
  bool gate_per_row;             ///< key_gate is [B, T, H, rows], not [B, T, H]
  Gates beta;                    ///< [B, T, H]; null: no delta rule
  float scale;
  const float *initial, *grad_last;  ///< [B, H, rows, columns]; null: zeros
  float *last, *grad_initial;        ///< the same; null: not wanted
  void *values, *grad_query, *grad_key, *grad_value;
  float* grad_beta;
  float *residual, *written_gradient;  ///< r and m [B, T, H, columns], of the delta rule
  float* key_part;                     ///< R n [B, T, H, rows], of the delta rule
  float *row_terms,
      *column_terms;  ///< what each token adds to the gradients of the gates before it, [B, T, H, ·]; null: not wanted
  float *row_ends, *column_ends;  ///< [B·H, segments, ·]: ⟨S, R⟩ after each segment's last token
  float* states;                  ///< [B·H, segments, rows·columns of the kernel] in the threads' order
};

/// step.cu: the forward of a single token, at most 128 rows.
void step_forward(const ScanArguments& arguments, cudaStream_t stream);

}  // namespace lethe::matrix_state
