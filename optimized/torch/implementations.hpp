#pragma once
// The implementations of each operator: a table for each, read by dispatch, by lethe::forgetting_attention_implementation, by `lethe describe` and by
// the tests. The first row that supports a call runs it.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "optimized/coverage.hpp"
#include "reference/problem.hpp"

namespace lethe {

struct AttentionInputs;  // optimized/operators/attention.hpp
struct AttentionOutputs;
struct AttentionGradients;
struct AttentionHandover;
struct MatrixStateInputs;  // optimized/operators/matrix_state.hpp
struct MatrixStateOutputs;
struct MatrixStateGradients;

/// The properties of a call that select its row.
struct Call {
  Shape shape;  ///< of a matrix state: query_length = key_length = T, query_heads = heads
  Dtype dtype;
  at::DeviceType device;
  int compute_capability;  ///< of a CUDA device, 90 = 9.0; 0 in a build without CUDA kernels
  MatrixStateForm form{};  ///< of a matrix state's call
};

Call call_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);
Call call_of(const MatrixStateInputs& inputs);
Call call_of(const MatrixStateInputs& inputs, const Shape& shape);  ///< as if it had this shape

/// Whether the row that runs a call on its tensors' device leaves states for its backward, and their bytes a head
/// (kept_state_bytes in kept_states.hpp). Works on symbolic shapes, and before the arguments are checked.
bool leaves_states(const MatrixStateInputs& inputs);
c10::SymInt kept_state_bytes(const MatrixStateInputs& inputs);

/// A row. Arguments are checked before it is called.
template <typename Forward, typename Backward>
struct Implementation {
  const char* name;
  std::optional<at::DeviceType> device;                 ///< whose tensors it reads; absent: any device's
  std::function<std::string(const Call&)> unsupported;  ///< why it can't run a call on that device, "" where it can
  std::function<Forward> forward;                       ///< empty in a build without it, as `backward` is
  std::function<Backward> backward;
};
struct AttentionImplementation : Implementation<AttentionOutputs(const AttentionInputs&),
                                                AttentionGradients(const at::Tensor& grad_values,
                                                                   const AttentionInputs&, const AttentionOutputs&)> {
  /// The backward between those of gated_output and attention_inputs; empty where it can take over nothing.
  std::function<AttentionGradients(const at::Tensor& grad_values, const AttentionInputs&, const AttentionOutputs&,
                                   const AttentionHandover&)>
      backward_between = {};
  bool leaves_query_sums = false;  ///< whether AttentionHandover::query_sums may be set
};
using MatrixStateImplementation =
    Implementation<MatrixStateOutputs(const MatrixStateInputs&),
                   MatrixStateGradients(const at::Tensor& grad_values, const at::Tensor& grad_state,
                                        const MatrixStateInputs&)>;

/// The CPU's, one for each CUDA kernel family (optimized/coverage.hpp), and the portable one.
std::span<const AttentionImplementation> attention_implementations();
std::span<const MatrixStateImplementation> matrix_state_implementations();

/// implementation_name of a call of the matrix state; where it runs in pieces, of those, such as "in 1 x 2 pieces: delta chunk kernels".
std::string matrix_state_implementation_name(const Call& call);

/// Whether a row reads tensors of this device.
template <typename Row>
bool is_for(const Row& row, at::DeviceType device) {
  return !row.device || *row.device == device;
}

/// The first row that supports the call; the last row supports every call.
template <typename Row>
const Row& implementation_of(std::span<const Row> rows, const Call& call) {
  for (const Row& row : rows) {
    if (is_for(row, call.device) && row.unsupported(call).empty()) return row;
  }
  return rows.back();
}

/// Its name, and why the rows before it were passed over, so that no implementation's speed is taken for another's.
///
/// returns  such as "sm_90a kernels", or "sm_80 kernels, not the sm_90a kernels: dtype: expected bfloat16 or float16, found float32"
template <typename Row>
std::string implementation_name(std::span<const Row> rows, const Call& call) {
  const Row& chosen = implementation_of(rows, call);
  std::string name = chosen.name;
  for (const Row& row : rows) {
    if (&row == &chosen) break;
    if (is_for(row, call.device)) name += std::string(", not the ") + row.name + ": " + row.unsupported(call);
  }
  return name;
}

}  // namespace lethe
