#pragma once
// The layers' kernels: raw device pointers, no Torch. Each call runs on the given stream, allocates nothing and never synchronises; equal calls give
// equal bits (no atomics). `rows` are tokens; a pitch is the distance of two rows in elements. Arrays without a pitch are contiguous. A 16-byte path
// runs where widths, pitches and addresses allow it; every other width and pitch takes a path of single elements.
//
// throws   std::runtime_error for a CUDA error

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "optimized/layers/rows.hpp"
#include "reference/problem.hpp"

namespace lethe::layers {

/// sum = residual + branch,  normed = sum · rstd · weight,  rstd = (mean sum² + ε)^(−1/2)
struct AddRmsNorm {
  int64_t rows, width;
  Dtype dtype;           ///< of branch and normed
  Dtype residual_dtype;  ///< of residual and sum: float32, or dtype
  double epsilon;
  const void* residual;  ///< [rows, width]
  const void* branch;    ///< [rows, width], or null
  const void* weight;    ///< [width], float32 (float64 for float64)
  void* normed;          ///< [rows, width]
  void* sum;             ///< [rows, width]; unused without a branch
  void* rstd;            ///< [rows], as weight
  cudaStream_t stream;
};
void add_rms_norm(const AddRmsNorm& call);

/// With n = sum · rstd:  g = grad_sum + rstd · (w ∘ dy − n · mean(n ∘ w ∘ dy)),  dw = Σ_rows n ∘ dy.
struct AddRmsNormBackward {
  int64_t rows, width;
  Dtype dtype, residual_dtype;
  const void* grad_normed;  ///< [rows, width] of dtype
  const void* grad_sum;     ///< [rows, width] of residual_dtype, or null
  const void* sum;          ///< [rows, width] of residual_dtype
  const void *weight, *rstd;
  void* grad_residual;  ///< g, of residual_dtype
  void* grad_branch;    ///< g, of dtype, or null
  void* grad_weight;    ///< [width], as weight
  void* workspace;      ///< add_rms_norm_workspace_bytes
  cudaStream_t stream;
};
size_t add_rms_norm_workspace_bytes(int64_t rows, int64_t width, Dtype dtype);
void add_rms_norm_backward(const AddRmsNormBackward& call);

/// values = silu(a) · b,  a and b the halves of gate_and_up [rows, 2·width]
struct Swiglu {
  int64_t rows, width;
  Dtype dtype;
  Rows gate_and_up;
  void* values;  ///< [rows, width]
  cudaStream_t stream;
};
void swiglu(const Swiglu& call);

/// da = dh · b · (σ(a) + a σ'(a)),  db = dh · silu(a)
struct SwigluBackward {
  int64_t rows, width;
  Dtype dtype;
  Rows grad_values, gate_and_up;
  void* grad_gate_and_up;  ///< [rows, 2·width]
  cudaStream_t stream;
};
void swiglu_backward(const SwigluBackward& call);

/// y = RMSNorm of each head(o) ∘ σ(gate)
struct GatedOutput {
  int64_t rows, heads, head_dim;
  Dtype dtype;
  double epsilon;
  const void* o;     ///< [rows, heads·head_dim]
  Rows gate;         ///< [rows, heads·head_dim], may be absent
  const void* norm;  ///< [heads·head_dim], float32 (float64 for float64), or null
  void* values;      ///< [rows, heads·head_dim]
  cudaStream_t stream;
};
void gated_output(const GatedOutput& call);

/// With n = o · rstd (recomputed), s = σ(gate): dgate = dy ∘ n w ∘ s(1 − s), do as RMSNorm's derivative of dy ∘ s, dw = Σ_rows n ∘ dy ∘ s. Where
/// asked, also delta_h = Σ_d do_hd (o + residual)_hd of the rounded do, which is what attention's backward multiplies by the values.
struct GatedOutputBackward {
  int64_t rows, heads, head_dim;
  Dtype dtype;
  double epsilon;
  Rows grad_values;
  const void* o;
  const void* residual = nullptr;  ///< [rows, heads·head_dim], unread without delta; null: 0
  Rows gate;
  const void* norm;
  void* grad_o;           ///< [rows, heads·head_dim]
  MutableRows grad_gate;  ///< absent with the gate
  void* grad_norm;        ///< [heads·head_dim], as norm; absent with it
  void* delta = nullptr;  ///< [rows, heads], as norm; null: not wanted
  void* workspace;        ///< gated_output_workspace_bytes
  cudaStream_t stream;
};
size_t gated_output_workspace_bytes(int64_t rows, int64_t heads, int64_t head_dim, Dtype dtype);
void gated_output_backward(const GatedOutputBackward& call);

/// y_h = x_h · s_h of each head h of a row
struct ScaledHeads {
  int64_t rows, heads, head_dim;
  Dtype dtype;
  Rows x;             ///< [rows, heads·head_dim]
  const void* scale;  ///< [rows, heads], float32 (float64 for float64)
  void* values;       ///< [rows, heads·head_dim]
  cudaStream_t stream;
};
void scaled_heads(const ScaledHeads& call);

/// dx_h = dy_h · s_h,  ds_h = Σ_d x_hd · dy_hd
struct ScaledHeadsBackward {
  int64_t rows, heads, head_dim;
  Dtype dtype;
  Rows grad_values, x;
  const void* scale;
  MutableRows grad_x;  ///< [rows, heads·head_dim]
  void* grad_scale;    ///< [rows, heads], as scale
  cudaStream_t stream;
};
void scaled_heads_backward(const ScaledHeadsBackward& call);

/// y_h = (o_h + skip_h · x_h) ∘ silu(gate_h) of each head h of a row
struct GatedSkip {
  int64_t rows, heads, head_dim;
  Dtype dtype;
  const void* o;     ///< [rows, heads·head_dim]
  Rows x, gate;      ///< [rows, heads·head_dim]
  const void* skip;  ///< [heads], float32 (float64 for float64)
  void* values;      ///< [rows, heads·head_dim]
  cudaStream_t stream;
};
void gated_skip(const GatedSkip& call);

/// do = dy ∘ silu(gate),  dx_h = skip_h · do_h,  dskip_h = Σ_{rows,d} do_hd · x_hd,  dgate = dy ∘ (o + skip · x) ∘ silu'(gate)
struct GatedSkipBackward {
  int64_t rows, heads, head_dim;
  Dtype dtype;
  Rows grad_values;
  const void* o;
  Rows x, gate;
  const void* skip;
  void* grad_o;                   ///< [rows, heads·head_dim]
  MutableRows grad_x, grad_gate;  ///< [rows, heads·head_dim]
  void* grad_skip;                ///< [heads], as skip
  void* workspace;                ///< gated_skip_workspace_bytes
  cudaStream_t stream;
};
size_t gated_skip_workspace_bytes(int64_t rows, int64_t heads, Dtype dtype);
void gated_skip_backward(const GatedSkipBackward& call);

/// u_tc = bias_c + Σ_{i<width} weight_ci · x_{t−width+1+i,c},  values = u, or silu(u)
struct ShortConvolution {
  int64_t batch, length, channels;
  int width;  ///< 2 … 4
  Dtype dtype;
  bool silu;
  Rows x;              ///< [batch·length, channels]
  const void* weight;  ///< [channels, width], float32 (float64 for float64)
  const void* bias;    ///< [channels], as weight, or null
  const void* state;   ///< [batch, width − 1, channels]: the tokens before the first; null: zeros
  void* values;        ///< [batch·length, channels]
  cudaStream_t stream;
};
void short_convolution(const ShortConvolution& call);

/// With du = dy · silu'(u), or dy:  dx_t = Σ_i weight_i · du_{t+width−1−i},  dweight_i = Σ_t du_t · x_{t−width+1+i},  dbias = Σ_t du_t.
struct ShortConvolutionBackward {
  ShortConvolution forward;  ///< whose values are unused
  Rows grad_values;
  MutableRows grad_x;  ///< [batch·length, channels]
  void* grad_weight;   ///< [channels, width], as weight
  void* grad_bias;     ///< [channels], as weight, or null
  void* grad_state;    ///< [batch, width − 1, channels], or null; unwritten where length is 0
  void* workspace;     ///< short_convolution_workspace_bytes
};
size_t short_convolution_workspace_bytes(const ShortConvolution& call);
void short_convolution_backward(const ShortConvolutionBackward& call);

/// Loss and argmax of rows of logits, and their gradient in place:
///
///   loss_n = log Σ_{v<V} e^{l_nv} − l_{n,y},  l_nv ← (e^{l_nv}/Σ − 1_{v=y}) · scale for v < V, 0 for V ≤ v < pitch
struct CrossEntropyRows {
  int64_t rows, vocabulary, pitch;
  Dtype dtype;
  void* logits;           ///< [rows, pitch]; overwritten where `gradient`
  const int64_t* labels;  ///< [rows], in 0 … V−1
  float* loss;            ///< [rows], nats
  bool* correct;          ///< [rows]: the label is the first largest logit; or null
  bool gradient;
  float scale;
  cudaStream_t stream;
};
void cross_entropy_rows(const CrossEntropyRows& call);

}  // namespace lethe::layers
