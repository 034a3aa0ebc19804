#pragma once
// The delta rule with FoX's forget gate.

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/forget_gate.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

struct GatedDeltaConfig : StateConfig, ForgetGateConfig {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kToken, .delta = true};
  static constexpr const char* kName = "gated_delta";
  bool sum_norm = false;       ///< φ(x) / (Σ_i φ(x)_i + ε) for queries and keys
  double norm_epsilon = 1e-6;  ///< ε of it
  double write_bias = -5;      ///< initial b: g ≈ 0.007

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    StateConfig::members(self, visit);
    ForgetGateConfig::members(self, visit);
    visit("sum_norm", self.sum_norm);
    visit("norm_epsilon", self.norm_epsilon);
    visit("write_bias", self.write_bias);
  }
};

/// A state_layer with FoX's gate and write strength g:
///
///   S̄_t = f_t S_{t−1},  S_t = S̄_t + g_t k_t (v_t − S̄_tᵀ k_t)ᵀ,  f by forget_gate, g = σ(w·x + b)
///
/// source   Yang 2024, "Gated Delta Networks"
Mixer gated_delta_mixer();

}  // namespace lethe
