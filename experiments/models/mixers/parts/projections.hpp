#pragma once
// Queries, keys and values of the attention mixers.

#include <torch/types.h>

#include <initializer_list>
#include <optional>
#include <vector>

#include "experiments/models/config.hpp"
#include "experiments/models/mixers/parts/rotations.hpp"
#include "experiments/models/parameters.hpp"
#include "optimized/torch/layers.hpp"

namespace lethe {

/// RMSNorm of queries and keys per head, with weights of size head_dim shared by the heads, or of size width.
enum class QkNorm { kNone, kShared, kPerHead };

template <>
struct EnumNames<QkNorm> {
  static inline const std::vector<std::pair<QkNorm, std::string>> names{
      {QkNorm::kNone, "none"}, {QkNorm::kShared, "shared"}, {QkNorm::kPerHead, "per_head"}};
};

/// The transformations of queries, keys and values before attention reads them.
struct ProjectionConfig : RotationConfig {
  QkNorm qk_norm = QkNorm::kShared;
  bool kv_shift = true;

  template <class Self, class Visitor>
  static void members(Self& self, Visitor&& visit) {
    RotationConfig::members(self, visit);
    visit("qk_norm", self.qk_norm);
    visit("kv_shift", self.kv_shift);
  }

  /// throws  std::invalid_argument for a rotation that is invalid for heads of this size
  void check(int64_t head_dim) const;
};

/// The tokens that a layer projects after a past: x, and before it the past's last token where the shift of keys and values reads it.
struct TokensAndShift {
  TokensAndShift(const torch::Tensor& x, bool kv_shift, const Past* past);

  /// Without the past's token.
  ///
  /// reads    [B,n,...] of n tokens, or undefined
  torch::Tensor own(const torch::Tensor& of_all) const;
  HeadInputs own(const HeadInputs& of_all) const;

  torch::Tensor x;
  int64_t first;  // position of the first token
  int64_t repeated;
};

/// Puts the keys, values and gates [B,T,...] of the past before those of x, and keeps all, or the last `most` tokens, and x's last token.
void continue_past(Past& past, const torch::Tensor& x, std::initializer_list<torch::Tensor*> inputs,
                   std::optional<int64_t> most = std::nullopt);

/// q, k, v = W x;  k, v shifted by one (Pro);  q, k normed (Pro);  q, k rotated (RoPE), in this order.
///
/// source   FoX Eq. 16–20
struct QueryKeyValue {
  /// Registers the parameters of the switches that are on.
  QueryKeyValue(const Weights& weights, const ModelConfig& model, const ProjectionConfig& own);

  /// The arguments of attention_inputs, or of gated_attention.
  ///
  /// reads    products [B,T,n] of x with query, key, value, key_shift and value_shift, the last two undefined without the shift; for a gate
  ///          that reads x, its logits [B,T,H] and bias [H]; first: the position of the first token
  AttentionInputProducts products_of(const std::vector<torch::Tensor>& products, Rotations& rotations,
                                     const torch::Tensor& gate_logits = {}, const torch::Tensor& gate_bias = {},
                                     int64_t first = 0) const;

  /// attention_inputs(products); of packed sequences without a shift from one into the next.
  ///
  /// returns  query, key, value [B,T,H,D]; log_forget [B,T,H], undefined without logits
  HeadInputs heads_of(AttentionInputProducts products, const Rotations& rotations) const;

  /// U = γq·γk·√D ≥ |q·k|/√D with γ = max |w| of the norms' weights, widened by four roundings of `dtype`.
  ///
  /// source   Adaptive Computation Pruning, Appendix A
  /// returns  [H], or undefined without QK-norm
  torch::Tensor logit_bound(torch::Dtype dtype) const;

  /// Multiply-adds of a token, and the columns in the compute dtype that autograd keeps of it.
  static double multiply_adds(const ModelConfig& model, const ProjectionConfig& own);
  static int64_t columns(const ModelConfig& model, const ProjectionConfig& own);

  ProjectionConfig own;
  int64_t heads, head_dim;
  torch::Tensor query, key, value;       // [width,width]
  torch::Tensor key_shift, value_shift;  // [H,width]
  torch::Tensor query_norm, key_norm;    // [D] shared, [width] per head
};

}  // namespace lethe
