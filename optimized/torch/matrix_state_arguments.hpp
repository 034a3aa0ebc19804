#pragma once
// What a call of the matrix state operators reads, and what is refused, whatever the device. Works on symbolic shapes too.

#include <ATen/core/Tensor.h>

#include <optional>

namespace lethe {

/// The inputs of both operators as the internal ones take them: beta present is the delta rule.
struct MatrixStateInputs {
  const at::Tensor &query, &key, &value;  ///< [B,T,H,K], [B,T,H,K], [B,T,H,V]
  const std::optional<at::Tensor>&log_key_gate, &log_value_gate, &beta, &state;
  double scale;
  bool normalize;

  /// Of the state: V, and one for the normaliser.
  c10::SymInt state_columns() const { return value.sym_size(3) + (normalize ? 1 : 0); }
};

/// That all are strided: the public operators ask first, for the dispatcher has no implementation to ask for another layout.
///
/// throws  c10::Error "name: expected …, found …"
void check_layouts(const MatrixStateInputs& inputs);

/// Ranks, shapes, dtypes, devices and scale (matrix_state.hpp tells what they must be). Values inside tensors are not read: a device
/// would have to be waited for.
///
/// throws  c10::Error "name: expected …, found …"
void check_arguments(const MatrixStateInputs& inputs);

/// The same with the gradients of values and state.
void check_gradient_arguments(const at::Tensor& grad_values, const at::Tensor& grad_state,
                              const MatrixStateInputs& inputs);

}  // namespace lethe
