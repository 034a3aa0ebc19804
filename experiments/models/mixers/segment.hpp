#pragma once
// Softmax attention over segments with the keys and values of the segment before: Llama-XL.

#include <torch/types.h>

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/projections.hpp"

namespace lethe {

struct SegmentConfig : ProjectionConfig {
  static constexpr const char* kName = "segment";
  int64_t segment = 256;  ///< tokens of a segment

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    ProjectionConfig::members(self, visit);
    visit("segment", self.segment);
  }
};

/// Segment recurrence: a query sees its own segment up to itself and the whole segment before. With s(i) the segment of token i:
///
///   o_i = Σ_{j ≤ i, s(j) ≥ s(i) − 1} softmax_j( q_i·k_j / |k_j| ) v_j
///
/// No gradient reaches keys and values of the segment before, which the paper keeps from the batch before. A sequence of n segments is n
/// consecutive batches of the paper; positions that restart at each pair of segments give RoPE the same differences.
///
/// source   Liu 2024, "Forgetting Curve", Appendix D.2: without 1/√D
/// reads    query, key, value [B,T,H,D], T ≥ 1
/// returns  [B,T,H,D] in the dtype of query
/// cost     3/2·B·T·segment·H·D multiply-adds for scores and as many for values; memory as forgetting_attention, which it calls with open gates,
///          and a copy of keys and values
/// numerics as forgetting_attention; norms in float32, or float64 for float64 inputs
torch::Tensor segment_attention(const torch::Tensor& query, const torch::Tensor& key, const torch::Tensor& value,
                                int64_t segment);

/// q, k, v of QueryKeyValue;  o = segment_attention(q, k, v);  y = W_o (norm(o) ⊙ σ(W_g x)), norm and gate: Pro.
///
/// trace    none
Mixer segment_mixer();

}  // namespace lethe
