#pragma once
// Gated linear attention: the additive rule with FoX's forget gate.

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/forget_gate.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

struct GatedLinearConfig : StateConfig, ForgetGateConfig {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kToken};
  static constexpr const char* kName = "gated_linear";
  bool attention_norm = false;  ///< o = Sᵀφ(q) / (z·φ(q) + ε), z the same sum as S over keys alone
  double norm_epsilon = 1e-6;   ///< ε of it

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    StateConfig::members(self, visit);
    ForgetGateConfig::members(self, visit);
    visit("attention_norm", self.attention_norm);
    visit("norm_epsilon", self.norm_epsilon);
  }
};

/// A state_layer with FoX's gate:
///
///   S_t = f_t S_{t−1} + k_t v_tᵀ,  f by forget_gate
///
/// source   FoX, Eq. 7–10
Mixer gated_linear_mixer();

}  // namespace lethe
