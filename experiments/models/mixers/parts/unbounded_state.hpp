#pragma once
// A matrix state whose gates nothing bounds, for the claim that such a rule diverges.

#include <torch/types.h>

#include <optional>
#include <tuple>

namespace lethe {

/// The recurrence of gated_state with gates of any sign and size, as products instead of sums of logs:
///
///   S_t = diag(f_t) S_{t−1} diag(g_t) + k_t v_tᵀ    o_t = S_tᵀ q_t
///
/// by doubling: after the pass of n, each state holds the writes of its last 2n tokens.
///
/// source   Mao 2022, "Fine-Tuning Pre-trained Transformers into Decaying Fast Weights", Eq. 7 without its sigmoids (footnote 1)
/// reads    query, key [B,T,H,m]; value [B,T,H,D]; key_gate f [B,T,H,m], value_gate g [B,T,H,D]; state [B,H,m,D], absent: zeros; cu_seqlens: packed
///          sequences, as gated_state, of a batch of one and no state
/// returns  o [B,T,H,D] in query's dtype; the state after the last token. What overflows is infinite or NaN
/// cost     O(B·T·H·m·D·log T) time; forward keeps all states, 4·B·T·H·m·D bytes, and a backward has four times as many in flight
/// numerics everything in float32, or float64 for float64 inputs
std::tuple<torch::Tensor, torch::Tensor> unbounded_state(const torch::Tensor& query, const torch::Tensor& key,
                                                         const torch::Tensor& value, const torch::Tensor& key_gate,
                                                         const torch::Tensor& value_gate,
                                                         const std::optional<torch::Tensor>& state,
                                                         const std::optional<torch::Tensor>& cu_seqlens);

}  // namespace lethe
