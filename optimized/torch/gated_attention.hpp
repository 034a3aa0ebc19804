#pragma once
// Attention between two matrix products of a layer: three operators of layers.hpp and forgetting_attention.hpp, differentiable as one.

#include <ATen/core/Tensor.h>

#include <optional>

#include "optimized/torch/layers.hpp"

namespace lethe {

/// The arguments of attention_inputs, forgetting_attention and gated_output where they follow each other; each function's header has their meaning.
struct GatedAttention {
  AttentionInputProducts products;
  std::optional<at::Tensor> log_forget = {};  ///< [B,T,H], instead of products.gate_logits
  std::optional<double> log_pruning_tolerance = {};
  std::optional<at::Tensor> logit_bound = {};
  std::optional<int64_t> window = {};
  bool prune_by_mass = true;
  std::optional<at::Tensor> output_gate = {}, output_norm = {};  ///< gate and norm of gated_output
  double output_epsilon = 0;
};

/// The three operators in turn, with the same values:
///
///   q, k, v, log f = attention_inputs(products);  o = forgetting_attention(q, k, v, log f);  y = gated_output(o, output_gate, output_norm)
///
/// Where a gradient is recorded and hands_over(call) has either, the backward is one node, in which
///
///   gated_output's backward also returns Δ = Σ_D ∂o ∘ (o + residual), of the rounded ∂o: attention's reads neither o nor its residual
///   attention's leaves ∂q / scale as float sums in its tiles' order, from which attention_inputs' computes on: ∂q is never rounded to 16 bits
///
/// Elsewhere the three operators' own backwards run.
///
/// source   FoX Eq. 11–20 and 22–24
/// reads    log_forget float32 (float64), if and only if products.gate_logits is absent
/// returns  [B,T,H·D] in the dtype of the products
/// throws   c10::Error as the three, and "log_forget: expected …, found …"; where handed over, c10::NotImplementedError for a second derivative,
///          and for create_graph; torch.func refuses it
/// cost     theirs; handed over 6 bytes of 10 an element less in attention's backward and 2 more in gated_output's, and a kernel that reads 4 and
///          writes 2 less for 2 more in attention_inputs'
at::Tensor gated_attention(const GatedAttention& call);

/// What one operator's backward hands to the next one's.
struct Handover {
  bool delta =
      false;  ///< Δ, from gated_output's: on CUDA's kernel families (optimized/coverage.hpp) where there is an output gate or norm
  bool query_sums =
      false;  ///< ∂q as sums: on the sm_90a kernels at head dims 64 and 128 where the query has a norm or a rotation
  bool any() const { return delta || query_sums; }
};

/// reads    a call that attention_inputs takes. Neither under autocast, which converts between the operators.
Handover hands_over(const GatedAttention& call);

}  // namespace lethe
