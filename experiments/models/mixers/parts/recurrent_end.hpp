#pragma once
// The end of the published recurrent layers: a norm, a SiLU gate, and a projection.

#include <torch/types.h>

#include <utility>

#include "experiments/models/parameters.hpp"

namespace lethe {

/// y = W_o (norm(o) ⊙ silu(W_g x)), norm an RMSNorm of each group of columns with one weight for all groups, the gate where wanted.
struct RecurrentEnd {
  /// A projection's initial values, by its rows and columns.
  using InitialOf = Initial (*)(int64_t rows, int64_t columns);

  /// Registers g_proj.weight [groups·size,width] where gated, o_norm.weight [size] and o_proj.weight [width,groups·size].
  RecurrentEnd(const Weights& weights, int64_t width, int64_t groups, int64_t size, bool gated, InitialOf initial);

  /// reads    o [B,T,H,D] with H·D = groups·size; gate_logits [B,T,H·D] = x Wᵀ of `gate`, unread where that is undefined
  /// returns  [B,T,width] in the dtype of o
  torch::Tensor operator()(const torch::Tensor& o, const torch::Tensor& gate_logits) const;

  int64_t groups, size;
  torch::Tensor gate, norm;

 private:
  Product output_;
};

/// U(−b, b) with b = 2^(−5/2)·√(6 / (rows + columns)): the initial projections of RetNet, HGRN2 and DeltaNet.
///
/// source  Sun et al. 2023, "Retentive Network", its published code
Initial small_xavier(int64_t rows, int64_t columns);

/// N(0, 0.02²), whatever the size.
Initial usual(int64_t rows, int64_t columns);

/// Queries and keys of length 1: x / √(Σ x² + 1e-6) of each head, by attention_inputs, whose norm of a constant weight it is.
///
/// reads    query, key [B,T,H·D]
/// returns  [B,T,H,D] in their dtype
std::pair<torch::Tensor, torch::Tensor> unit_lengths(const torch::Tensor& query, const torch::Tensor& key,
                                                     int64_t heads);

}  // namespace lethe
