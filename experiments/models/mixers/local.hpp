#pragma once
// Softmax attention over a window.

#include <torch/types.h>

#include <optional>

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/projections.hpp"

namespace lethe {

struct LocalConfig : ProjectionConfig {
  static constexpr const char* kName = "local";
  int64_t window = 32;  ///< in tokens, the query's own among them

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    ProjectionConfig::members(self, visit);
    visit("window", self.window);
  }
};

/// Local attention: a query sees the last W tokens, its own among them, and nothing older.
///
///   o_i = Σ_{i − W < j ≤ i} softmax_j( q_i·k_j / √D ) v_j
///
/// source   T2FW, Table 2, "local attention"
/// reduces  W ≥ T → softmax attention; W = 1 → o_i = v_i
/// reads    query [B,T,H,D]; key, value [B,Tk,H,D], T ≤ Tk: queries have the last T positions; window W ≥ 1; cu_seqlens, packed sequences, as
///          forgetting_attention
/// returns  [B,T,H,D] in the dtype of query
/// cost     2·B·T·min(W + 256, T)·H·D multiply-adds at most; memory as forgetting_attention, which it calls with open gates
/// numerics as forgetting_attention
torch::Tensor local_attention(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                              int64_t window, const std::optional<torch::Tensor>& cu_seqlens = std::nullopt);

/// q, k, v of QueryKeyValue;  o = local_attention(q, k, v);  y = W_o (norm(o) ⊙ σ(W_g x)), norm and gate: Pro.
///
/// trace    none
Mixer local_mixer();

}  // namespace lethe
