#pragma once
// The arguments of attention_inputs' kernels, the same on the CPU and on CUDA: raw pointers, no Torch.

#include <cstdint>

#include "optimized/layers/rows.hpp"
#include "reference/problem.hpp"

namespace lethe::layers {

/// A gradient of queries as attention's backward on CUDA leaves it, in slices of optimized/cuda/query_sums.hpp: g = scale · sum.
struct QuerySums {
  const float* data = nullptr;  ///< [batch, heads, slices, kSliceFloats]; null: absent
  int64_t slices = 0;           ///< of a head
  float scale = 1;
};

/// Queries, keys or values. With u the product and α = σ(shift), for each token t and head:
///
///   x_t = α_t u_{t−1} + (1 − α_t) u_t,  n = x · rstd,  rstd = (mean_D x² + ε)^(−1/2),  y = R_t (w ∘ n)
///
/// where R_t rotates (y_i, y_{i+D/2}) by the angle of token t; each of shift, norm and rotation may be absent. Backward, from g = ∂loss/∂y and with
/// e = w ∘ R_tᵀ g:
///
///   dx = rstd (e − n · mean_D(n ∘ e)),  dw = Σ n ∘ R_tᵀ g,  du_t = (1 − α_t) dx_t + α_{t+1} dx_{t+1},
///   dshift_t = α_t (1 − α_t) Σ_D dx_t ∘ (u_{t−1} − u_t)
///
/// "Wide" is float32, or float64 for float64.
struct HeadRows {
  Rows product;                ///< u [rows, heads·head_dim]; absent: nothing is computed
  Rows shift = {};             ///< logits [rows, heads]
  const void* norm = nullptr;  ///< w, wide [head_dim], or [heads·head_dim] where norm_per_head
  bool norm_per_head = false;
  bool rotated = false;
  void* values = nullptr;  ///< y [rows, heads·head_dim], contiguous; forward only
  // Backward only.
  Rows grad_values = {};          ///< g
  QuerySums grad_sums = {};       ///< g in its stead, of 16-bit products of head dim 64 or 128 on CUDA, without shift
  MutableRows grad_product = {};  ///< du
  MutableRows grad_shift = {};    ///< absent with shift
  void* grad_norm = nullptr;      ///< wide, as norm; null with it
};

/// A forward or a backward call. Rows are batch · length tokens; u_{−1} = 0 at each sequence's start.
struct AttentionInputs {
  int64_t batch, length, heads, head_dim;
  Dtype dtype;
  double epsilon;
  HeadRows parts[3];                              ///< query, key, value
  const void *cosine = nullptr, *sine = nullptr;  ///< wide [length, head_dim/2], where a part is rotated
  Rows gate_logits = {};                          ///< [rows, heads]
  const void* gate_bias = nullptr;                ///< wide [heads], or null
  void* log_forget = nullptr;                     ///< log σ(logits + bias), wide [rows, heads]; forward only
  // Backward only.
  const void* grad_log_forget = nullptr;  ///< wide [rows, heads]
  MutableRows grad_gate_logits = {};      ///< absent with gate_logits
  void* grad_gate_bias = nullptr;         ///< wide [heads]; null with gate_bias
};

}  // namespace lethe::layers
