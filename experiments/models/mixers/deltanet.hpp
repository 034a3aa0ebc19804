#pragma once
// DeltaNet and Gated DeltaNet: the delta rule on convolved queries, keys and values, with keys of length one or of sum one.

#include "experiments/models/mixers/mixer.hpp"
#include "optimized/coverage.hpp"

namespace lethe {

struct DeltaNetConfig {
  static constexpr const char* kName = "deltanet";
  double key_expansion = 1;    ///< columns of all queries, and of all keys, over width
  double value_expansion = 1;  ///< columns of all values over width
  bool forget_gate = false;    ///< Gated DeltaNet's, else a = 1
  bool output_gate = false;    ///< silu(W_g x)
  bool sum_norm = false;       ///< queries and keys are positive features that sum to one, else of length one

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    visit("key_expansion", self.key_expansion);
    visit("value_expansion", self.value_expansion);
    visit("forget_gate", self.forget_gate);
    visit("output_gate", self.output_gate);
    visit("sum_norm", self.sum_norm);
  }

  MatrixStateForm form() const {
    return {.key_gate = forget_gate ? MatrixStateForm::Gate::kToken : MatrixStateForm::Gate::kNone, .delta = true};
  }
};

/// In this order, for each head with K rows and V columns:
///
///   q, k, v = silu(conv(W x)), each with a convolution of its own;  q, k ← q/|q|, k/|k|
///   with the sum norm  q, k = φ(conv(W x)), φ = ELU + 1;            q, k ← q/(Σq + 1e-6), k/(Σk + 1e-6)
///   β = σ(W_b x);  log a = TimeStep(W_a x) with the forget gate
///   S̄_t = a_t S_{t−1},  S_t = S̄_t + β_t k_t (v_t − S̄_tᵀ k_t)ᵀ;  o_t = S_tᵀ q_t / √K
///   y = W_o (norm(o) ⊙ silu(W_g x))   an RMSNorm of each head; the gate where there is one
///
/// source   Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule", Section 3, and its ablation for the sum norm, which is Schlag et
///          al. 2021's; Yang, Kautz & Hatamizadeh 2024, "Gated Delta Networks", Eq. 10. T2FW's delta rule, without convolutions, is the mixer delta
/// trace    a StateTrace
/// cost     B·T·width times the projections' columns, and 3 or 4 passes over the state
Mixer deltanet_mixer();

}  // namespace lethe
