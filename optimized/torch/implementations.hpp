#pragma once
// The implementations of each operator: a table for each, read by dispatch, by lethe::forgetting_attention_implementation, by `lethe describe` and by
// the tests. The first row that supports a call runs it.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

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
  int compute_capability;      ///< of a CUDA device, 90 = 9.0; 0 in a build without CUDA kernels
  MatrixStateForm form{};      ///< of a matrix state's call
  bool deterministic = false;  ///< whether gradients are to be summed in one fixed order
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
  std::function<bool(const Call&)> is_of_form = {};  ///< whether it has the rule of a call; empty: of every call
  std::function<std::string(const Call&)> variant =
      {};  ///< which of its kernels run a call; empty or "": not told apart
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

/// A row and why it was passed over.
using PassedOver = std::pair<const char*, std::string>;

/// ", not the A kernels: REASON, not the B kernels and the C kernels: REASON", ", not the others: REASON" where several have one.
std::string listed_reasons(const std::vector<PassedOver>& rows);

/// The row that runs a call, in words, and why the rows of its rule before it were passed over, so that no implementation's speed is taken for
/// another's.
struct ImplementationText {
  std::string name;         ///< "sm_80 kernels"
  std::string variant;      ///< " (forward tiles 128 × 32, …)", or ""
  std::string passed_over;  ///< ", not the sm_90a kernels: dtype: expected bfloat16 or float16, found float32", or ""
};

template <typename Row>
ImplementationText implementation_text(std::span<const Row> rows, const Call& call) {
  const Row& chosen = implementation_of(rows, call);
  std::vector<PassedOver> others;
  for (const Row& row : rows) {
    if (&row == &chosen) break;
    if (is_for(row, call.device) && (!row.is_of_form || row.is_of_form(call)))
      others.emplace_back(row.name, row.unsupported(call));
  }
  const std::string variant = chosen.variant ? chosen.variant(call) : "";
  return {chosen.name, variant.empty() ? "" : " (" + variant + ")", listed_reasons(others)};
}

/// Its name and reasons, without the variant.
template <typename Row>
std::string implementation_name(std::span<const Row> rows, const Call& call) {
  const ImplementationText text = implementation_text(rows, call);
  return text.name + text.passed_over;
}

/// Of a call of the matrix state: where it runs in pieces, the text of those, named "delta chunk kernels in 1 × 2 pieces of 120 × 120".
ImplementationText matrix_state_text(const Call& call);

}  // namespace lethe
