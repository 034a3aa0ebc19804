#pragma once
// The decay rule: a gate of rank one.

#include <torch/types.h>

#include <optional>

#include "experiments/models/mixers/mixer.hpp"
#include "experiments/models/mixers/parts/state.hpp"

namespace lethe {

struct DecayConfig : StateConfig {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kKey, .value_gate = true};
  static constexpr const char* kName = "decay";
  /// n of Uniform Gate Initialisation, σ(b) ~ U[1/n, 1 − 1/n]; absent: a head's number of gates.
  std::optional<double> gate_range;
  /// Whether what is written is gated too, (1 − f_t z_tᵀ) ⊙ k_t v_tᵀ.
  bool write_gate = false;
  /// Whether σ bounds the gates; else they are W x + b of any sign and size, with biases that begin at the same gates.
  bool sigmoid = true;

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    StateConfig::members(self, visit);
    visit("gate_range", self.gate_range);
    visit("write_gate", self.write_gate);
    visit("sigmoid", self.sigmoid);
  }
};

/// Biases b with σ(b) ~ U[1/n, 1 − 1/n] (Uniform Gate Initialisation): gates from almost immediate to almost no forgetting.
///
/// source   Gu et al. 2020; T2FW, Section 3
/// reads    size of the bias vector; n ≥ 2, with n = 2 all gates are 1/2
/// returns  [size] float32 on the CPU
torch::Tensor uniform_gate_bias(int64_t size, double n, torch::Generator generator);

/// A state_layer with one gate per row and one per column:
///
///   S_t = diag(f_t) S_{t−1} diag(z_t) + k_t v_tᵀ,  f = σ(W_f x + b_f), z = σ(W_z x + b_z)
///
/// source   T2FW, Eq. 7; without a write gate after Section 3, with the sigmoid after footnote 1
Mixer decay_mixer();

}  // namespace lethe
