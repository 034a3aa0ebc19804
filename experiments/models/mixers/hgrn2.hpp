#pragma once
// HGRN2: a gate for each row of the state, whose complement is the key.

#include "experiments/models/mixers/mixer.hpp"
#include "optimized/coverage.hpp"

namespace lethe {

struct Hgrn2Config {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kKey};
  static constexpr const char* kName = "hgrn2";

  template <class Self, class Visitor>
  static void members(Self&, Visitor&&) {}
};

/// In this order, for each head with D = width / heads rows and columns:
///
///   q = silu(W_q x);  f = σ(W_f x);  v = W_i x
///   S_t = diag(f_t) S_{t−1} + (1 − f_t) v_tᵀ;  o_t = S_tᵀ q_t / √D
///   y = W_o RMSNorm(o)   norm over all heads
///
/// source   Qin et al. 2024, "HGRN2", Eq. 4 and 9. The gates have no lower bound: in the models that FoX compares with, the bound is never read
/// trace    a StateTrace
/// cost     B·T·(4·width² + 3·width·D) multiply-adds
Mixer hgrn2_mixer();

}  // namespace lethe
