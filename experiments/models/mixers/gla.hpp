#pragma once
// GLA: a gate for each row of the state, by a product of low rank.

#include "experiments/models/mixers/mixer.hpp"
#include "optimized/coverage.hpp"

namespace lethe {

struct GlaConfig {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kKey};
  static constexpr const char* kName = "gla";
  double key_expansion = 0.5;  ///< columns of all queries, and of all keys, over width
  double value_expansion = 1;  ///< columns of all values over width
  int64_t gate_rank = 16;
  double gate_divisor = 16;  ///< τ: gates are near 1 at the beginning

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    visit("key_expansion", self.key_expansion);
    visit("value_expansion", self.value_expansion);
    visit("gate_rank", self.gate_rank);
    visit("gate_divisor", self.gate_divisor);
  }
};

/// In this order, for each head with K rows and V columns:
///
///   q, k, v = W x;  log f = logσ(W₂ W₁ x + b) / τ
///   S_t = diag(f_t) S_{t−1} + k_t v_tᵀ;  o_t = S_tᵀ q_t / √K
///   y = W_o (norm(o) ⊙ silu(W_g x))   an RMSNorm of each head
///
/// source   Yang et al. 2023, "Gated Linear Attention", Section 4.4
/// trace    a StateTrace
/// cost     B·T·width times the projections' columns, and 3 passes over the state
Mixer gla_mixer();

}  // namespace lethe
