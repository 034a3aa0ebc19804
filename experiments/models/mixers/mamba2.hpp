#pragma once
// Mamba-2: a scalar gate a head by a time step, keys and queries shared among the heads of a group.

#include "experiments/models/mixers/mixer.hpp"
#include "optimized/coverage.hpp"

namespace lethe {

struct Mamba2Config {
  static constexpr MatrixStateForm kForm{.key_gate = MatrixStateForm::Gate::kToken};
  static constexpr const char* kName = "mamba2";
  int64_t expansion = 2;     ///< inner width over width; the inner heads have the model's head dim
  int64_t state_size = 128;  ///< N: rows of a head's state
  int64_t groups = 1;        ///< of heads with the same B and C
  double norm_epsilon = 1e-5;

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    visit("expansion", self.expansion);
    visit("state_size", self.state_size);
    visit("groups", self.groups);
    visit("norm_epsilon", self.norm_epsilon);
  }

  int64_t inner(const ModelConfig& model) const;
  int64_t heads(const ModelConfig& model) const;
  int64_t convolved(const ModelConfig& model) const;  // columns of x, B and C
};

/// In this order, for each head with P = width / heads columns:
///
///   z, xBC, u = W_in x;  x, B, C = silu(conv(xBC));  Δ, log a = TimeStep(u)
///   S_t = a_t S_{t−1} + B_t (Δ_t x_t)ᵀ  [N,P];  o_t = S_tᵀ C_t + D x_t
///   y = W_out (RMSNorm(o ⊙ silu(z)))   norm over all heads, after the gate
///
/// source   Dao & Gu 2024, "Mamba-2", Eq. 1 and Section 7, with the defaults of its published 130M to 2.7B models, whose blocks have no MLP.
///          The trunk's norms have ε 1e-6 instead of 1e-5
/// trace    a StateTrace
/// cost     B·T·(3·expansion·width² + 3·expansion·width·N) multiply-adds and little more
Mixer mamba2_mixer();

}  // namespace lethe
