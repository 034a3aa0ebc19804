#pragma once
// The forget gate of a head, for attention and for the mixers with a state and FoX's gate.

#include <torch/types.h>

#include "experiments/models/config.hpp"
#include "experiments/models/json_members.hpp"
#include "experiments/models/parameters.hpp"

namespace lethe {

/// The kind of a head's forget gate f (FoX §4.5).
enum class ForgetGate {
  kNone,      ///< f = 1: a Transformer
  kFull,      ///< f_t = σ(w·x_t + b), b starting at forget_bias
  kBiasOnly,  ///< f = σ(b), b trained, long-init
  kFixed      ///< f = σ(b), b fixed, long-init: ALiBi
};

template <>
struct EnumNames<ForgetGate> {
  static inline const std::vector<std::pair<ForgetGate, std::string>> names{{ForgetGate::kNone, "none"},
                                                                            {ForgetGate::kFull, "full"},
                                                                            {ForgetGate::kBiasOnly, "bias_only"},
                                                                            {ForgetGate::kFixed, "fixed"}};
};

struct ForgetGateConfig {
  ForgetGate forget_gate = ForgetGate::kFull;
  double forget_bias = 0;  ///< initial b of kFull; FoX's 0 begins with a half-life of one token, n with about ln 2 · eⁿ
  double decay_time_min = 2.0;  ///< long-init of kBiasOnly and kFixed: T(b) from min to max, log-spaced over the heads
  double decay_time_max = 256.0;

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    visit("forget_gate", self.forget_gate);
    visit("forget_bias", self.forget_bias);
    visit("decay_time_min", self.decay_time_min);
    visit("decay_time_max", self.decay_time_max);
  }

  /// throws  std::invalid_argument for an invalid bias or decay times
  void check() const;

  /// The same for a mixer with a state, where a gate is required.
  void check_of_state() const;
};

/// Gate biases b = −log(exp(1/T) − 1), so that σ(b) = exp(−1/T): with that gate a head forgets over T tokens, T log-spaced
/// from decay_time_min to decay_time_max over the heads.
///
/// source   FoX §4.5, "long-init"
/// returns  [H] float32 on the CPU
torch::Tensor long_init(const ForgetGateConfig& own, int64_t heads);

/// One gate per head and token, of the kind forget_gate: f_t = σ(w·x_t + b), or σ(b).
///
/// source   FoX Eq. 3 and §4.5
struct ForgetGateWeights {
  /// Registers fgate_proj.weight and fgate_proj.bias, or fgate_bias (a buffer where it is fixed); nothing for
  /// ForgetGate::kNone.
  ForgetGateWeights(const Weights& weights, const ModelConfig& model, const ForgetGateConfig& own);

  /// reads    logits [B,T,H] = w·x, where there is a weight, else unread; batch = B, length = T; dtype of the result
  /// returns  log f [B,T,H]; not to be called for ForgetGate::kNone
  torch::Tensor log_gate(const torch::Tensor& logits, int64_t batch, int64_t length, torch::Dtype dtype) const;

  /// log f of a gate that doesn't read x, 0 for ForgetGate::kNone.
  ///
  /// returns  [B,T,H] of x [B,T,width], a number a head repeated by strides of 0, in the accumulation dtype of x
  torch::Tensor constant_gate(const torch::Tensor& x, int64_t heads) const;

  /// Multiply-adds of a token.
  static double multiply_adds(const ModelConfig& model, const ForgetGateConfig& own);

  torch::Tensor weight;  // [H,width], undefined for a gate that doesn't read x
  torch::Tensor bias;    // [H]
};

}  // namespace lethe
