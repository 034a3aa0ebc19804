#pragma once
// The forget gate of a head, of attention and of the mixers with a state that forget as FoX does.

#include <torch/nn/module.h>

#include <string>

#include "experiments/models/config.hpp"

namespace lethe {

/// Gate biases b = −log(exp(1/T) − 1), so that σ(b) = exp(−1/T): a head whose gate stays there forgets over T tokens, T
/// log-spaced from decay_time_min to decay_time_max over the heads.
///
/// source   FoX §4.5, "long-init"
/// returns  [H] float32 on the CPU
torch::Tensor long_init(const ModelConfig& config);

/// One gate a head and token, as config.forget_gate says: f_t = σ(w·x_t + b), or σ(b).
///
/// source   FoX Eq. 3 and §4.5
struct ForgetGateWeights {
  ForgetGateWeights() = default;
  /// Registers fgate_proj.weight and fgate_proj.bias, or fgate_bias (a buffer where it is fixed), below `root` at `path`;
  /// nothing for ForgetGate::kNone.
  ForgetGateWeights(torch::nn::Module& root, const std::string& path, const ModelConfig& config, torch::Device device);

  /// reads    logits [B,T,H] = w·x, where there is a weight, else unread; batch = B, length = T; dtype of the result
  /// returns  log f [B,T,H]; not to be called for ForgetGate::kNone
  torch::Tensor log_gate(const torch::Tensor& logits, int64_t batch, int64_t length, torch::Dtype dtype) const;

  torch::Tensor weight;  // [H, width], undefined where the gate doesn't read x
  torch::Tensor bias;    // [H]
};

}  // namespace lethe
