#pragma once
// The end of a layer, which most mixers share.

#include <torch/types.h>

#include <optional>

#include "experiments/models/config.hpp"
#include "experiments/models/parameters.hpp"
#include "optimized/torch/gated_attention.hpp"

namespace lethe {

/// The end of a mixer: y = W_o (norm(o) ⊙ σ(gate)), norm and gate where the model has them.
///
/// source   FoX Eq. 22–24, with the sigmoid around the output gate of its Figure 1
struct OutputEnd {
  /// Registers ogate_proj.weight, output_norm.weight and o_proj.weight, the first two where the model has them.
  OutputEnd(const Weights& weights, const ModelConfig& model);

  /// reads    o [B,T,H,D]; gate_logits [B,T,width] = x Wᵀ of `gate`, unread where that is undefined
  /// returns  [B,T,width] in the dtype of o
  torch::Tensor operator()(const torch::Tensor& o, const torch::Tensor& gate_logits) const;

  /// The same of the o of a GatedAttention, whose output members are set here.
  torch::Tensor operator()(GatedAttention attention, const torch::Tensor& gate_logits) const;

  /// Multiply-adds of a token, and the columns in the compute dtype that autograd keeps of it, the values o among them.
  static double multiply_adds(const ModelConfig& model);
  static int64_t columns(const ModelConfig& model);

  int64_t heads;
  torch::Tensor gate, norm;  // [width,width], [width]

 private:
  std::optional<torch::Tensor> widened_norm(torch::Dtype dtype) const;

  Product output_;  // of o_proj.weight [width,width]
};

}  // namespace lethe
