#pragma once
// A language model's output head and its loss in one pass over the logits, which are never all in memory.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lethe {

/// Of N rows; undefined where not asked for.
struct LinearCrossEntropy {
  at::Tensor losses;       ///< [N] float32 (float64 for float64), nats
  at::Tensor correct;      ///< [N] bool: the label is the first largest logit
  at::Tensor grad_hidden;  ///< [N,d] in the dtype of hidden
};

/// The loss of each row, and whether its label is the most probable token:
///
///   l_nv = w_v·h_n,   loss_n = log Σ_{v<V} e^{l_nv} − l_{n,label_n}
///
/// reads    hidden [N,d]; weight [Vp,d] of its dtype, float64, float32, bfloat16 or float16, 1 ≤ V ≤ Vp, whose rows V … Vp − 1 are padding, of
///          finite numbers; labels [N] int64; rows_at_once: of a chunk of logits, 0: up to 2²⁹ bytes of logits on CUDA, 2²³ logits elsewhere
/// returns  losses and correct; NaN and false where a label is outside 0 … V − 1, or a logit of the row is NaN or +∞
/// throws   c10::Error "name: expected …, found …" for a wrong shape, dtype or device
/// cost     2·N·d·Vp FLOPs; one chunk of logits
/// numerics logits rounded to the dtype of hidden; exponentials and sums in the dtype of the losses
LinearCrossEntropy linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                                        int64_t vocabulary, int64_t rows_at_once = 0);

/// The same with the gradients of L = scale · Σ_n loss_n, made from the same logits; nothing is recorded for autograd.
///
///   ∂L/∂l_nv = scale · (e^{l_nv} / Σ − 1_{v = label_n}), 0 for v ≥ V;   grad_hidden = ∂L/∂l · w;   weight_gradient += (∂L/∂l)ᵀ h
///
/// reads    weight_gradient [Vp,d] float32 (float64 for float64)
/// returns  grad_hidden too; NaN in the rows whose loss is NaN, and then in weight_gradient
/// cost     6·N·d·Vp FLOPs; one chunk of logits (16 bits on the CPU: and two in float32)
/// numerics ∂L/∂l rounded to the dtype of hidden, on the CPU unrounded in float32 for weight_gradient; weight_gradient is added to in its own dtype
LinearCrossEntropy linear_cross_entropy_with_gradients(const at::Tensor& hidden, const at::Tensor& weight,
                                                       const at::Tensor& labels, int64_t vocabulary, double scale,
                                                       at::Tensor& weight_gradient, int64_t rows_at_once = 0);

}  // namespace lethe
