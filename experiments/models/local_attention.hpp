#pragma once
// Softmax attention over a window.

#include <torch/types.h>

namespace lethe {

/// Local attention: a query sees the last W tokens, its own among them, and nothing older.
///
///   o_i = Σ_{i − W < j ≤ i} softmax_j( q_i·k_j / √D ) v_j
///
/// source   T2FW, Table 2, "local attention"
/// reduces  W ≥ T → softmax attention; W = 1 → o_i = v_i
/// reads    query, key, value [B,T,H,D], T ≥ 1; window W ≥ 1
/// returns  [B,T,H,D] in the dtype of query
/// cost     2·B·T·min(2W, T)·H·D multiply-adds; memory O(B·H·T·min(2W, T)): blocks of W queries over their own keys and the
///          W before them
/// numerics logits and weights in float32, or float64 for float64 inputs
torch::Tensor local_attention(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                              int64_t window);

}  // namespace lethe
