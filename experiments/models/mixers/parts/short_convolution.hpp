#pragma once
// The short convolution of recurrent mixers, with its state.

#include <torch/types.h>

#include <optional>
#include <string>

#include "experiments/models/mixers/parts/packed.hpp"
#include "experiments/models/parameters.hpp"

namespace lethe {

/// Σ_i w_i u_{t−W+1+i} + b of every channel, over W = kWidth tokens, and SiLU of it where wanted.
///
/// source   optimized/torch/layers.hpp, short_convolution
struct ShortConvolution {
  static constexpr int64_t kWidth = 4;

  /// Registers NAME.weight [channels,W], and NAME.bias [channels] where wanted, both U(−W^(−1/2), W^(−1/2)).
  ShortConvolution(const Weights& weights, const std::string& name, int64_t channels, bool has_bias, bool silu = true);

  /// reads    u [B,T,channels]; packed: where given, u's sequences, none of which sees another; before: where given, the W − 1 tokens before u
  ///          [B,W−1,channels], undefined at the beginning of a text, and of packed sequences
  /// returns  like u; before: the W − 1 tokens before those to come, of packed sequences unchanged
  /// cost     that of short_convolution, and of packed sequences two copies
  torch::Tensor operator()(const torch::Tensor& u, const std::optional<Packed>& packed, torch::Tensor* before) const;

  torch::Tensor weight, bias;
  bool silu;
};

}  // namespace lethe
