#pragma once
// The arguments of lethe::_attention_inputs_forward, and their checks. Works on symbolic shapes too.

#include <ATen/core/Tensor.h>

#include <optional>

#include "optimized/operators/checks.hpp"
#include "optimized/torch/layers.hpp"

namespace lethe {

/// A call of the operator: only the products that change.
struct AttentionInputArguments {
  std::optional<at::Tensor> query, key, value, key_shift, value_shift, query_norm, key_norm, cosine, sine, gate_logits,
      gate_bias;
  int64_t heads;
  double epsilon;

  /// A tensor [B,T,...] of the products' dtype, which sets B, T, dtype and device of all.
  const at::Tensor& first() const {
    for (const std::optional<at::Tensor>* tensor : {&query, &key, &value, &gate_logits})
      if (*tensor) return **tensor;
    TORCH_CHECK(false, "attention_inputs: expected query, key, value or gate_logits, found none");
  }
  /// One of the products that has heads of head_dim columns, if any.
  const at::Tensor* product() const {
    for (const std::optional<at::Tensor>* tensor : {&query, &key, &value})
      if (*tensor) return &**tensor;
    return nullptr;
  }
  c10::SymInt head_dim() const { return product() ? product()->sym_size(2) / heads : c10::SymInt(0); }
  at::TensorOptions wide_options() const { return first().options().dtype(accumulation_dtype(first().scalar_type())); }
};

/// The arguments without the products that nothing changes.
AttentionInputArguments changed(const AttentionInputProducts& products);

/// Ranks, shapes, dtypes and devices.
///
/// throws  c10::Error "name: expected …, found …"
void check_arguments(const AttentionInputArguments& arguments);

/// The same for a backward call.
void check_gradients(const HeadInputs& gradients, const AttentionInputArguments& arguments);

}  // namespace lethe
