#pragma once
// The side operators of a language model's layers, each one pass over its arrays: torch.ops.lethe.NAME, differentiable once, on CPU, CUDA and Meta.
//
// Activations are bfloat16, float16, float32 or float64; statistics, mixtures and gradients of weights are accumulated in float32 (float64 for
// float64) and rounded once at the end. Rows may have a stride; the last dimension is contiguous.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace lethe {

/// Residual addition and RMSNorm:
///
///   sum = residual + branch,  normed_n = sum_n · rstd_n · w,  rstd_n = (mean_d sum_nd² + ε)^(−1/2)
///
/// source   FoX Eq. 16, 18 and 24
/// reads    residual [..., d], float32 (float64), or the 16-bit dtype of the branch; branch [..., d] in `dtype`, absent: 0; weight [d] float32
///          (float64)
/// returns  normed [..., d] in `dtype`; sum [..., d] in the dtype of residual, which is residual itself where there is no branch; normed is of the
///          rounded sum
/// throws   c10::Error "name: expected …, found …" for another dtype, device or shape, or an ε that is negative or not finite
/// cost     one read and one write of each array; backward the same, and a float32 partial sum of the weight's gradient a block
std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& residual, const std::optional<at::Tensor>& branch,
                                                const at::Tensor& weight, double epsilon, at::ScalarType dtype);

/// silu(a) · b of the halves a, b of the last dimension.
///
/// source   Shazeer 2020
/// reads    gate_and_up [..., 2I]
/// returns  [..., I] in its dtype
/// throws   c10::Error "gate_and_up: expected …, found …" for an odd number of columns or another dtype
/// cost     one read and one write of each array; backward reads gate_and_up again and computes the gate anew
at::Tensor swiglu(const at::Tensor& gate_and_up);

/// y = norm(o) ⊙ σ(gate), norm an RMSNorm of each head.
///
/// source   FoX Eq. 22–24, with the sigmoid around the output gate of its Figure 1
/// reads    o [B,T,H,D], copied where it is not contiguous; gate [B,T,H·D] in the dtype of o, absent: no gate; norm [H·D] float32 (float64),
///          absent: no norm
/// returns  [B,T,H·D] in the dtype of o; a view of o with neither
/// throws   c10::Error "name: expected …, found …" for another dtype, device or shape, or an ε that is negative or not finite
/// cost     one read and one write of each array; backward reads o and gate again, and a float32 partial sum of the norm's gradient a block
at::Tensor gated_output(const at::Tensor& o, const std::optional<at::Tensor>& gate,
                        const std::optional<at::Tensor>& norm, double epsilon);

/// y_h = x_h · s_h for each head h of a token: a time step times what is written.
///
/// source   Dao & Gu 2024, "Mamba-2", Section 7
/// reads    x [B,T,H·D], on the CPU copied where it is not contiguous; scale [B,T,H] float32 (float64)
/// returns  [B,T,H,D] in the dtype of x
/// throws   c10::Error "name: expected …, found …" for another dtype, device or shape
/// cost     one read and one write of each array; backward the same
at::Tensor scaled_heads(const at::Tensor& x, const at::Tensor& scale);

/// y = (o + skip ⊙ x) ⊙ silu(gate), skip a number a head: what a state gives, what passes by it, and the output gate.
///
/// source   Dao & Gu 2024, "Mamba-2", Section 7
/// reads    o [B,T,H,D]; x, gate [B,T,H·D] in its dtype; skip [H] float32 (float64); o copied where it is not contiguous, on
///          the CPU the others too
/// returns  [B,T,H·D] in the dtype of o
/// throws   c10::Error "name: expected …, found …" for another dtype, device or shape
/// cost     one read and one write of each array; backward reads o, x and gate again, and a float32 partial sum of skip's gradient a block
at::Tensor gated_skip(const at::Tensor& o, const at::Tensor& x, const at::Tensor& skip, const at::Tensor& gate);

/// A causal convolution of every channel with a few weights of its own, and SiLU where wanted:
///
///   u_tc = b_c + Σ_{i<W} w_ci x_{t−W+1+i,c},  values = u, or silu(u)
///
/// source   Dao & Gu 2024, "Mamba-2", Section 7; the short convolution of DeltaNet and Gated DeltaNet
/// reads    x [B,T,C]; weight [C,W] float32 (float64), W 2 … 4, the newest token's last; bias [C] in its dtype, absent: 0; state [B,W−1,C] in the
///          dtype of x, the tokens before the first, absent: 0. The state for the tokens to come is the last W−1 tokens of state and x
/// returns  values [B,T,C] in the dtype of x
/// throws   c10::Error "name: expected …, found …" for another dtype, device or shape
/// cost     one read and one write of each array, W·B·T·C multiply-adds; saves its arguments for the backward and nothing else. That computes u
///          again; gradients of weight and bias are partial sums of fixed ranges of tokens, added in one fixed order
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& state, bool silu);

/// From the products with x to the operator's inputs. In this order:
///
///   k_t ← α_t k_{t−1} + (1 − α_t) k_t, α = σ(key_shift), k_{−1} = 0;  v the same with value_shift
///   q, k ← RMSNorm of each head;  q, k rotated: (x_i, x_{i+D/2}) by the angle of cosine and sine
///   log f = log σ(gate_logits + gate_bias)
///
/// source   FoX Eq. 3 and 16–20
/// reads    query, key, value [B,T,H·D]; key_shift, value_shift [B,T,H] in their dtype, absent: no shift; query_norm, key_norm [D] or [H·D] float32
///          (float64), absent: no norm; cosine, sine [T,D/2] float32 (float64), without gradient, absent: no rotation; gate_logits [B,T,H] in the
///          dtype of query, absent: no gate; gate_bias [H] float32 (float64), absent: 0
/// returns  query, key, value [B,T,H,D] in their dtype: views of the products where nothing changes them; log_forget [B,T,H] float32 (float64),
///          undefined without gate_logits
/// throws   c10::Error "name: expected …, found …" for a wrong rank, shape, dtype or device
/// cost     one read and one write of each array that changes; saves its arguments for the backward and nothing else. That reads the products and
///          the arriving gradients once and writes each gradient once; gradients of norms and bias are summed in one fixed order
struct AttentionInputProducts {
  at::Tensor query, key, value;
  std::optional<at::Tensor> key_shift = {}, value_shift = {};
  std::optional<at::Tensor> query_norm = {}, key_norm = {};
  std::optional<at::Tensor> cosine = {}, sine = {};
  std::optional<at::Tensor> gate_logits = {}, gate_bias = {};
  int64_t heads = 1;
  double epsilon = 0;  ///< of the norms
};
struct HeadInputs {
  at::Tensor query, key, value, log_forget;
};
HeadInputs attention_inputs(const AttentionInputProducts& products);

}  // namespace lethe
