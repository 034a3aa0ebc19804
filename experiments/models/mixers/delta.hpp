#pragma once
// The delta rule: each write corrects the state's value for the key.

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

struct DeltaConfig : StateConfig {
  static constexpr MatrixStateForm kForm{.delta = true};
  static constexpr const char* kName = "delta";
  bool attention_norm = false;  ///< o = Sᵀφ(q) / (z·φ(q) + ε), z the same sum as S over keys alone
  bool sum_norm = false;        ///< φ(x) / (Σ_i φ(x)_i + ε) for queries and keys
  double norm_epsilon = 1e-6;   ///< ε of both
  double write_bias = -5;       ///< initial b: g ≈ 0.007

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    StateConfig::members(self, visit);
    visit("attention_norm", self.attention_norm);
    visit("sum_norm", self.sum_norm);
    visit("norm_epsilon", self.norm_epsilon);
    visit("write_bias", self.write_bias);
  }
};

/// A state_layer with write strength g; z of its attention norm has no gate:
///
///   S_t = S_{t−1} + g_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ,  g = σ(w·x + b)
///
/// source   T2FW, Eq. 6
Mixer delta_mixer();

}  // namespace lethe
