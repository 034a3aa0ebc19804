#pragma once
// The additive rule: linear attention.

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

struct AdditiveConfig : StateConfig {
  static constexpr MatrixStateForm kForm{};
  static constexpr const char* kName = "additive";
  bool attention_norm = false;  ///< o = Sᵀφ(q) / (z·φ(q) + ε), z the same sum as S over keys alone
  double norm_epsilon = 1e-6;   ///< ε of it

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    StateConfig::members(self, visit);
    visit("attention_norm", self.attention_norm);
    visit("norm_epsilon", self.norm_epsilon);
  }
};

/// A state_layer without a gate:
///
///   S_t = S_{t−1} + k_t v_tᵀ
///
/// source   T2FW, Eq. 3 and 4
Mixer additive_mixer();

}  // namespace lethe
