#pragma once
// Forgetting Attention with all switches of FoX Table 3; softmax attention is the case without a gate.

#include <torch/types.h>

#include <optional>

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/forget_gate.hpp"
#include "experiments/models/mixers/parts/projections.hpp"

namespace lethe {

/// The options of FoX (Pro) are the defaults.
struct AttentionConfig : ProjectionConfig, ForgetGateConfig {
  static constexpr const char* kName = "attention";
  std::optional<double> log_pruning_tolerance;  ///< log ε of Adaptive Computation Pruning; absent: off
  /// Whether pruning bounds the sum of weights, which visits fewer blocks; else each by the largest, as in the paper
  bool prune_by_mass = false;

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    ProjectionConfig::members(self, visit);
    ForgetGateConfig::members(self, visit);
    visit("log_pruning_tolerance", self.log_pruning_tolerance);
    visit("prune_by_mass", self.prune_by_mass);
  }

  /// Whether this is softmax attention, without gate, KV-shift and QK-norm.
  bool is_softmax() const { return forget_gate == ForgetGate::kNone && !kv_shift && qk_norm == QkNorm::kNone; }
};

/// The inputs of attention in a forward pass, for the claims on pruning.
struct AttentionTrace {
  torch::Tensor query, key, value;  ///< [B,T,H,D], the operator's inputs
  torch::Tensor log_forget;         ///< [B,T,H]
  torch::Tensor logit_bound;        ///< [H], or undefined where the operator computes it from the norms
  torch::Tensor visited_pairs;      ///< [B,H]; of packed sequences [N,H]
};

/// Multi-head attention with forget gates (FoX), or without (Transformer). In this order:
///
///   q, k, v of QueryKeyValue;  log f = logsigmoid(w·x + b)
///   o = forgetting_attention(q, k, v, log f);  y = W_o (norm(o) ⊙ σ(W_g x))   norm and gate: Pro
///
/// source   FoX Eq. 16–24
/// trace    an AttentionTrace
/// cost     B·T·(4 or 5)·width² + 2·B·T²·width multiply-adds
Mixer attention_mixer();

/// The attention operator's implementation on each GPU since compute capability 8.0; on 9.0 also why it is no other.
std::string attention_on_hopper(const ModelConfig& model, int64_t context_length);

}  // namespace lethe
