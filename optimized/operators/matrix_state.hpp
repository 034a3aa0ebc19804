#pragma once
// The arguments and results of the matrix state operators in every implementation, and the checks that hold on every device. Works on symbolic shapes
// too.

#include <ATen/core/Tensor.h>

#include <optional>

#include "optimized/operators/checks.hpp"

namespace lethe {

/// The inputs of both operators as the internal ones take them: beta present is the delta rule.
struct MatrixStateInputs {
  const at::Tensor &query, &key, &value;  ///< [B,T,H,K], [B,T,H,K], [B,T,H,V]
  const std::optional<at::Tensor>&log_key_gate, &log_value_gate, &beta, &state;
  double scale;
  bool normalize;
  bool keep_states = false;     ///< of a forward: whether it leaves states for a backward, of a row that does
  at::Tensor kept_states = {};  ///< of a backward: what the forward left; undefined or empty: nothing

  /// The columns of the state: V, and one for the normaliser.
  c10::SymInt state_columns() const { return value.sym_size(3) + (normalize ? 1 : 0); }
};

struct MatrixStateOutputs {
  at::Tensor values;  ///< [B,T,H,V], dtype of query
  at::Tensor state;   ///< [B,H,K,state_columns], float32, or float64 for float64: after the last token
  /// [B,H,bytes] uint8 in an order of the row's own, for its backward; undefined or [0]: none.
  at::Tensor kept_states = {};
};

/// The gradients; an absent input has an empty tensor.
struct MatrixStateGradients {
  at::Tensor query, key, value, log_key_gate, log_value_gate, beta, state;
};

/// Checks ranks, shapes, dtypes, devices and scale (required in optimized/torch/matrix_state.hpp). Values inside tensors are not read: that would
/// wait for the device.
///
/// throws  c10::Error "name: expected …, found …"
void check_arguments(const MatrixStateInputs& inputs);

/// The same with the gradients of values and state, this one undefined where there is none.
void check_gradient_arguments(const at::Tensor& grad_values, const at::Tensor& grad_state,
                              const MatrixStateInputs& inputs);

/// The gradient of the last state that a backward was given; zeros where it is undefined.
at::Tensor gradient_or_zeros(const at::Tensor& grad_state, const MatrixStateInputs& inputs);

}  // namespace lethe
