#pragma once
// The backwards of a layer's operators as plain functions, for an autograd node that spans several of them (gated_attention.cpp): what one hands to
// the next need not be a tensor that anything else may see.

#include <ATen/core/Tensor.h>

#include <optional>

#include "optimized/torch/layers.hpp"

namespace lethe {

/// The gradients of AttentionInputProducts' tensors; undefined of those that are absent.
struct AttentionInputGradients {
  at::Tensor query, key, value, key_shift, value_shift, query_norm, key_norm, gate_logits, gate_bias;
};

/// attention_inputs' backward.
///
/// reads    gradients of its results; query_sums in place of gradients.query where it is defined: ∂query / query_scale of a query that has a norm or
///          a rotation, [B·H, slices, kSliceFloats] as AttentionGradients::query_sums, of 16-bit products of head dim 64 or 128 on CUDA
/// returns  the gradients of the products in their places (split_columns.hpp)
AttentionInputGradients attention_inputs_backward(const HeadInputs& gradients, const at::Tensor& query_sums,
                                                  double query_scale, const AttentionInputProducts& products);

/// Whether attention_inputs changes the query, and so has a backward for it.
bool changes_query(const AttentionInputProducts& products);

/// What attention_inputs throws for wrong arguments.
void check_arguments(const AttentionInputProducts& products);

namespace cuda {

struct GatedOutputGradients {
  at::Tensor o, gate, norm;
  at::Tensor delta;  ///< [B,T,H] float32, Σ_d ∂o·(o + residual) of the rounded ∂o; undefined unless wanted
};

/// gated_output's backward.
///
/// reads    residual [B,T,H,D] in the dtype of o, or no elements: 0; unread unless delta is wanted
GatedOutputGradients gated_output_backward(const at::Tensor& grad_values, const at::Tensor& o,
                                           const at::Tensor& residual, const std::optional<at::Tensor>& gate,
                                           const std::optional<at::Tensor>& norm, double epsilon, bool delta);

}  // namespace cuda

}  // namespace lethe
