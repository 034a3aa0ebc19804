#pragma once
// The mixers with a state of fixed size: what T2FW puts into the place of attention, and those with FoX's forget gate.

#include <torch/nn/module.h>

#include <string>

#include "experiments/models/attention_layer.hpp"
#include "experiments/models/config.hpp"
#include "experiments/models/forget_gate.hpp"
#include "experiments/models/layers.hpp"

namespace lethe {

/// Biases b with σ(b) ~ U[1/n, 1 − 1/n] (Uniform Gate Initialisation): gates from forgetting almost at once to hardly at all.
///
/// source   Gu et al. 2020; T2FW, Section 3
/// reads    size of the bias vector; n ≥ 2, 2 makes all gates 1/2
/// returns  [size] float32 on the CPU
torch::Tensor uniform_gate_bias(int64_t size, double n, torch::Generator generator);

/// n of config's gates in a head of `gates` gates.
double gate_range(const ModelConfig& config, int64_t gates);

/// A layer whose past is a state S [m, D] a head. In this order, with m = state_rows():
///
///   q, k = φ(W_q x), φ(W_k x)   rotated before φ where the configuration has RoPE; v = W_v x
///   φ linear: W_q, W_k are [H·m, width];  φ ReLU: ReLU(W_φ u + b_φ) of u = W_q x, W_k x [D]
///   other φ: features.hpp of u = W_q x, W_k x [D]
///   sum norm: q, k ← q / (Σ q + ε), k / (Σ k + ε)
///   additive  S_t = S_{t−1} + k_t v_tᵀ
///   gated     S_t = g_t S_{t−1} + (1 − g_t) k_t v_tᵀ           g = σ(w·x)
///   delta     S_t = S_{t−1} + g_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ    g = σ(w·x + b)
///   decay     S_t = diag(f_t) S_{t−1} diag(z_t) + k_t v_tᵀ     f = σ(W_f x + b_f), z = σ(W_z x + b_z)
///   gated_linear  S_t = f_t S_{t−1} + k_t v_tᵀ                 f as config.forget_gate says
///   gated_delta   S̄_t = f_t S_{t−1},  S_t = S̄_t + g_t k_t (v_t − S̄_tᵀ k_t)ᵀ    f as there, g as delta's
///   o_t = S_tᵀ q_t;  attention norm: o_t / (z_t·q_t + ε), z_t the sum of keys with the gates of S (delta: without gate)
///   y = W_o (norm(o) ⊙ σ(W_g x))   norm and gate where the configuration has them
///
/// source   T2FW, Eq. 3–8; FoX, Eq. 7–10; Yang 2024, "Gated Delta Networks"
struct FastWeightsLayer {
  /// Registers the parameters that the configuration needs below `root` at `path`.
  FastWeightsLayer(torch::nn::Module& root, const std::string& path, const ModelConfig& config, torch::Device device);

  /// reads    x [B,T,width] in the compute dtype; rotation of query_dim columns where the configuration has RoPE; trace,
  ///          whose largest_state and largest_value are filled where given
  /// returns  [B,T,width] in the compute dtype
  /// throws   NotFinite where x isn't finite (on the CPU: elsewhere the loss tells)
  /// cost     B·T·width·(2·width + 2·H·query_dim) multiply-adds, W_φ and gates besides, and B·T·width·m times 2 to 4 for the
  ///          state; independent of the past
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation, AttentionTrace* trace) const;

  ModelConfig config;
  torch::Tensor query, key;                   // [H·query_dim, width]
  torch::Tensor value, output, output_gate;   // [width, width]
  torch::Tensor feature, feature_bias;        // [H·m, D], [H·m]
  torch::Tensor directions;                   // [m or m/2, D]: a buffer, of all heads
  torch::Tensor gate, gate_bias;              // [H, width], [H]: gated and the delta rules, the latter with bias
  ForgetGateWeights forget;                   // gated_linear and gated_delta
  torch::Tensor key_gate, key_gate_bias;      // [H·m, width], [H·m]: W_f, b_f
  torch::Tensor value_gate, value_gate_bias;  // [width, width], [width]: W_z, b_z
  torch::Tensor output_norm;                  // [width]

 private:
  /// φ(u) [B,T,H,m] of u [B,T,H,query_dim], before the sum norm, in the dtype of u or wider.
  torch::Tensor mapped(const torch::Tensor& u) const;
};

}  // namespace lethe
