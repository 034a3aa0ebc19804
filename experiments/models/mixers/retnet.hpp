#pragma once
// RetNet: linear attention with a fixed decay a head.

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/rotations.hpp"
#include "optimized/coverage.hpp"

namespace lethe {

struct RetNetConfig : RotationConfig {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kToken};
  static constexpr const char* kName = "retnet";
  double value_expansion = 2;  ///< columns of all values over width

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    RotationConfig::members(self, visit);
    visit("value_expansion", self.value_expansion);
  }
};

/// In this order, for head h with K = width / heads rows and V columns:
///
///   q, k, v = W x;  q, k rotated (RoPE)
///   S_t = γ_h S_{t−1} + k_t v_tᵀ,  γ_h = 1 − 2^(−5−h), h from 0;  o_t = S_tᵀ q_t / √K
///   y = W_o (norm(o) ⊙ silu(W_g x))   an RMSNorm of each head
///
/// source   Sun et al. 2023, "Retentive Network", Eq. 5 to 8, with an RMSNorm for its GroupNorm and RoPE for xPos, as published baselines have it
/// trace    a StateTrace
/// cost     B·T·width·(2 + 3·value_expansion)·width multiply-adds, and 3 passes over the state
Mixer retnet_mixer();

}  // namespace lethe
