#pragma once
// The output head and its loss in one differentiable step.

#include <torch/types.h>

namespace lethe {

constexpr int64_t kCrossEntropyChunk = int64_t{1} << 23;

/// loss_n = log Σ_v exp(w_v·h_n) − w_{label_n}·h_n, in nats, chunk by chunk of rows: forward and backward hold at most
/// `chunk` logits at a time (at least one row), and the backward pass computes them again.
///
/// reads    hidden [N,d]; weight [V,d] of the same dtype; labels [N] int64
/// returns  [N] float32 (float64 for float64); differentiable once in hidden and weight
/// cost     8·N·d·V FLOPs forward and backward
/// numerics logits rounded to the dtype of hidden; exponentials and sums, and the weight's gradient over the chunks, in
///          the dtype of the result
torch::Tensor cross_entropy(const torch::Tensor& hidden, const torch::Tensor& weight, const torch::Tensor& labels,
                            int64_t chunk = kCrossEntropyChunk);

}  // namespace lethe
