#pragma once
// Code that most mixers share: one product with the input, and the end of the layer.

#include <torch/types.h>

#include <vector>

#include "experiments/models/config.hpp"
#include "experiments/models/parameters.hpp"

namespace lethe {

/// x Wᵀ for the weights of all groups in one product.
///
/// reads    x [B,T,width]; groups of weights [n,width], of which some may be undefined
/// returns  a tensor [B,T,Σ n] a group in the dtype of x, undefined for a group without defined weights
std::vector<torch::Tensor> products(const torch::Tensor& x, const std::vector<std::vector<torch::Tensor>>& groups);

/// The end of a mixer: y = W_o (norm(o) ⊙ σ(gate)), norm and gate where the model has them.
///
/// source   FoX Eq. 22–24, with the sigmoid around the output gate of its Figure 1
struct OutputEnd {
  /// Registers ogate_proj.weight, output_norm.weight and o_proj.weight, the first two where the model has them.
  OutputEnd(const Weights& weights, const ModelConfig& model);

  /// reads    o [B,T,H,D]; gate_logits [B,T,width] = x Wᵀ of `gate`, unread where that is undefined
  /// returns  [B,T,width] in the dtype of o
  torch::Tensor operator()(torch::Tensor o, const torch::Tensor& gate_logits) const;

  /// Multiply-adds of a token, and the columns in the compute dtype that autograd keeps of it, the values o among them.
  static double multiply_adds(const ModelConfig& model);
  static int64_t columns(const ModelConfig& model);

  int64_t heads;
  torch::Tensor gate, norm, output;  // [width,width], [width], [width,width]
};

}  // namespace lethe
