#pragma once
// The gate of Mamba-2's heads, by a time step.

#include <torch/types.h>

#include "experiments/models/parameters.hpp"

namespace lethe {

/// Δ_t = softplus(u_t + b),  log a_t = −exp(A_log)·Δ_t, one each a head and token.
///
/// source   Dao & Gu 2024, "Mamba-2", Section 7; Gu & Dao 2023, "Mamba", Section 3.6, for the initial b: Δ log-spaced between 0.001 and 0.1
struct TimeStep {
  /// Registers dt_bias and A_log [heads].
  ///
  /// reads  rates: the initial values of A_log
  TimeStep(const Weights& weights, int64_t heads, Initial rates);

  /// reads    logits u [B,T,heads]
  /// returns  Δ and log a [B,T,heads], float32 or wider
  struct Steps {
    torch::Tensor size, log_gate;
  };
  Steps of(const torch::Tensor& logits) const;

  torch::Tensor bias, log_rate;
};

}  // namespace lethe
