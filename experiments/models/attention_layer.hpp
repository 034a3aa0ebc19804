#pragma once
// The attention half of a block: everything that FoX Table 3 switches on and off.

#include <torch/nn/module.h>

#include <string>

#include "experiments/models/config.hpp"
#include "experiments/models/forget_gate.hpp"
#include "experiments/models/layers.hpp"

namespace lethe {

/// What one layer's mixer saw in a forward call, for the claims on pruning and on states. Only filled where asked for, and
/// where the mixer has it: attention all but the last two, mixers with a state those, local attention none.
struct AttentionTrace {
  torch::Tensor query, key, value;  ///< [B,T,H,D] as the operator received them
  torch::Tensor log_forget;         ///< [B,T,H]
  torch::Tensor logit_bound;        ///< [H], or undefined where the operator takes it from the norms
  torch::Tensor visited_pairs;      ///< [B,H]
  torch::Tensor largest_state;      ///< max |S_t| over batch, heads and 256 tokens along the text
  torch::Tensor largest_value;      ///< max |o_t| over batch, heads and all tokens
};

/// The end of every mixer: y = W_o (norm(o) ⊙ σ(gate)).
///
/// source   FoX Eq. 22–24
/// reads    o [B,T,H,D]; output_norm [width], read where config.output_norm; gate_logits [B,T,width], read where
///          config.output_gate; output = W_o
/// returns  [B,T,width] in the dtype of o
torch::Tensor mixed_output(torch::Tensor o, const ModelConfig& config, const torch::Tensor& output_norm,
                           const torch::Tensor& gate_logits, const torch::Tensor& output);

/// Multi-head attention with forget gates (FoX), or without (Transformer, local attention). In this order:
///
///   q, k, v = W x;  k, v shifted by one (Pro);  q, k normed (Pro);  q, k rotated (RoPE);  log f = logsigmoid(w·x + b)
///   o = forgetting_attention(q, k, v, log f), or local_attention(q, k, v);  y = W_o (norm(o) ⊙ σ(W_g x))  (norm and gate: Pro)
///
/// source   FoX Eq. 16–24, with a sigmoid around the output gate as its Figure 1 has it
struct AttentionLayer {
  /// Registers the parameters of the switches that are on below `root` at `path`.
  AttentionLayer(torch::nn::Module& root, const std::string& path, const ModelConfig& config, torch::Device device);

  /// reads    x [B,T,width] in the compute dtype; rotation where the configuration has RoPE; trace, filled where given
  /// returns  [B,T,width] in the compute dtype
  /// cost     B·T·(4 or 5)·width² + 2·B·T²·width multiply-adds
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation, AttentionTrace* trace) const;

  /// U = γq·γk·√D ≥ |q·k|/√D with γ = max |w| of the norms' weights, widened by four roundings of `dtype`.
  ///
  /// source   Adaptive Computation Pruning, Appendix A
  /// returns  [H], or undefined without QK-norm
  torch::Tensor logit_bound(torch::Dtype dtype) const;

  ModelConfig config;
  torch::Tensor query, key, value, output, output_gate;  // [width, width]
  torch::Tensor key_shift, value_shift;                  // [H, width]
  ForgetGateWeights forget;
  torch::Tensor query_norm, key_norm;  // [D] shared, [width] per head
  torch::Tensor output_norm;           // [width]

 private:
  /// Forgetting Attention of q, k, v [B,T,H,D]; gate_logits [B,T,H] = w·x, read where the gate depends on x.
  torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                          const torch::Tensor& gate_logits, AttentionTrace* trace) const;
};

}  // namespace lethe
