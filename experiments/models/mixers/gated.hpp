#pragma once
// The gated rule: one scalar gate per head and token.

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

struct GatedConfig : StateConfig {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kToken};
  static constexpr const char* kName = "gated";
  bool attention_norm = false;  ///< o = Sᵀφ(q) / (z·φ(q) + ε), z the same sum as S over keys alone
  double norm_epsilon = 1e-6;   ///< ε of it

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    StateConfig::members(self, visit);
    visit("attention_norm", self.attention_norm);
    visit("norm_epsilon", self.norm_epsilon);
  }
};

/// A state_layer with a scalar gate without a bias:
///
///   S_t = g_t S_{t−1} + (1 − g_t) k_t v_tᵀ,  g = σ(w·x)
///
/// source   T2FW, Eq. 5
Mixer gated_mixer();

}  // namespace lethe
