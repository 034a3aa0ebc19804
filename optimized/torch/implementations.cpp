#include "optimized/torch/implementations.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

#include "optimized/cpu/operators.hpp"
#include "optimized/kept_states.hpp"
#include "optimized/operators/attention.hpp"
#include "optimized/operators/matrix_state.hpp"
#include "optimized/portable/operators.hpp"
#include "optimized/torch/dtype.hpp"
#ifdef LETHE_CUDA_KERNELS
#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/matrix_state.hpp"
#include "optimized/torch/cuda_forgetting_attention.hpp"
#include "optimized/torch/cuda_matrix_state.hpp"
#endif

namespace lethe {
namespace {

std::string every_call(const Call&) { return ""; }

// Whether the environment asks for the kernels that run on every GPU, on those that have kernels of their own, too.
bool only_portable_kernels() {
  const char* kernels = std::getenv("LETHE_KERNELS");
  if (!kernels || !*kernels) return false;
  TORCH_CHECK(std::string(kernels) == "portable", "LETHE_KERNELS: expected portable, or nothing, found ", kernels);
  return true;
}

bool is_empty(const Shape& s) { return std::min({s.batch, s.query_length, s.query_heads, s.value_dim}) == 0; }
constexpr const char* kEmpty = "size: expected elements, found none";

std::string unsupported_by(const Coverage& family, const Call& call) {
  if (!family.portable && only_portable_kernels()) return "LETHE_KERNELS: found portable";
  return is_empty(call.shape) ? kEmpty : family.unsupported(call.shape, call.dtype, call.compute_capability);
}

std::string unsupported_by_state(const MatrixStateCoverage& family, const Call& call) {
  return is_empty(call.shape) ? kEmpty : family.unsupported(call.shape, call.form, call.dtype, call.compute_capability);
}

// The row of a kernel family, still without its functions.
AttentionImplementation row_of(const Coverage& family) {
  AttentionImplementation row{{family.name, at::kCUDA, std::bind_front(unsupported_by, family), nullptr, nullptr}};
  if (family.variant)
    row.variant = [variant = family.variant](const Call& call) {
      return variant(call.shape, call.dtype, call.compute_capability, call.deterministic);
    };
  return row;
}

MatrixStateImplementation row_of(const MatrixStateCoverage& family) {
  MatrixStateImplementation row{family.name, at::kCUDA, std::bind_front(unsupported_by_state, family), nullptr,
                                nullptr};
  row.is_of_form = [other_form = family.other_form](const Call& call) { return other_form(call.form).empty(); };
  if (family.variant)
    row.variant = [variant = family.variant](const Call& call) {
      return variant(call.shape, call.form, call.dtype, call.compute_capability);
    };
  return row;
}

// Without the kernels the rows still name their coverage, for a device given by name only; a tensor's device has capability 0.
#ifdef LETHE_CUDA_KERNELS
std::vector<AttentionImplementation> cuda_rows() {
  std::vector<AttentionImplementation> rows;
  for (const AttentionFamily& family : attention_families()) {
    AttentionImplementation& row = rows.emplace_back(row_of(family));
    row.forward = std::bind_front(cuda::forgetting_attention_forward, std::cref(family));
    row.backward_between = std::bind_front(cuda::forgetting_attention_backward, std::cref(family));
    row.backward = [&family](const at::Tensor& grad_values, const AttentionInputs& in, const AttentionOutputs& out) {
      return cuda::forgetting_attention_backward(family, grad_values, in, out, {});
    };
    row.leaves_query_sums = family.query_sums != nullptr;
  }
  return rows;
}
std::vector<MatrixStateImplementation> cuda_state_rows() {
  std::vector<MatrixStateImplementation> rows;
  for (const MatrixStateFamily& family : matrix_state_families()) {
    MatrixStateImplementation& row = rows.emplace_back(row_of(family));
    row.forward = std::bind_front(cuda::matrix_state_forward, std::cref(family));
    row.backward = std::bind_front(cuda::matrix_state_backward, std::cref(family));
  }
  return rows;
}
int capability_of(const at::Tensor& tensor) { return tensor.is_cuda() ? compute_capability(tensor.get_device()) : 0; }
#else
std::vector<AttentionImplementation> cuda_rows() {
  std::vector<AttentionImplementation> rows;
  for (const Coverage& family : kAttentionCoverage) rows.push_back(row_of(family));
  return rows;
}
std::vector<MatrixStateImplementation> cuda_state_rows() {
  std::vector<MatrixStateImplementation> rows;
  for (const MatrixStateCoverage& family : kMatrixStateCoverage) rows.push_back(row_of(family));
  return rows;
}
int capability_of(const at::Tensor&) { return 0; }
#endif

std::vector<AttentionImplementation> attention_rows() {
  std::vector<AttentionImplementation> rows = cuda_rows();
  rows.insert(rows.begin(),
              {{"CPU", at::kCPU, every_call, cpu::forgetting_attention_forward, cpu::forgetting_attention_backward}});
  rows.push_back({{"portable", std::nullopt, every_call, portable::forgetting_attention_forward,
                   portable::forgetting_attention_backward}});
  return rows;
}

std::vector<MatrixStateImplementation> matrix_state_rows() {
  std::vector<MatrixStateImplementation> rows = cuda_state_rows();
  rows.insert(rows.begin(), {"CPU", at::kCPU, every_call, cpu::matrix_state_forward, cpu::matrix_state_backward});
  rows.push_back(
      {"portable", std::nullopt, every_call, portable::matrix_state_forward, portable::matrix_state_backward});
  return rows;
}

Shape shape_of_call(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return {query.size(0), query.size(1), key.size(1), key.size(2), query.size(2), query.size(3), value.size(3)};
}

MatrixStateForm form_of(const MatrixStateInputs& in) {
  using Gate = MatrixStateForm::Gate;
  return {.key_gate = !in.log_key_gate              ? Gate::kNone
                      : in.log_key_gate->dim() == 3 ? Gate::kToken
                                                    : Gate::kKey,
          .value_gate = in.log_value_gate.has_value(),
          .delta = in.beta.has_value(),
          .normalize = in.normalize};
}

}  // namespace

Call call_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return {.shape = shape_of_call(query, key, value),
          .dtype = dtype_of(query.scalar_type()),
          .device = query.device().type(),
          .compute_capability = capability_of(query)};
}

Call call_of(const MatrixStateInputs& in) { return call_of(in, shape_of_call(in.query, in.key, in.value)); }

Call call_of(const MatrixStateInputs& in, const Shape& shape) {
  return {.shape = shape,
          .dtype = dtype_of(in.query.scalar_type()),
          .device = in.query.device().type(),
          .compute_capability = capability_of(in.query),
          .form = form_of(in)};
}

c10::SymInt kept_state_bytes(const MatrixStateInputs& in) {
  const at::ScalarType dtype = in.query.scalar_type();
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || in.query.dim() != 4 || in.value.dim() != 4) return 0;
  return kept_state_bytes<c10::SymInt>(in.query.sym_size(1), in.query.sym_size(3), in.value.sym_size(3), form_of(in),
                                       dtype_of(dtype));
}

bool leaves_states(const MatrixStateInputs& in) {
  return capability_of(in.query) == 90 && keeps_states_at(in.normalize ? 1.0 : in.scale) && in.query.sym_numel() > 0 &&
         kept_state_bytes(in) > 0;
}

std::string listed_reasons(const std::vector<PassedOver>& rows) {
  std::vector<std::pair<std::string, std::string>> listed;  // rows, and the reason that they share
  for (const auto& [name, reason] : rows) {
    const auto same = std::ranges::find(listed, reason, [](const auto& entry) { return entry.second; });
    if (same == listed.end()) listed.emplace_back(name, reason);
    else same->first += std::string(" and the ") + name;
  }
  if (listed.size() == 1 && rows.size() > 1) listed.front().first = "others";
  std::string text;
  for (const auto& [names, reason] : listed) text += ", not the " + names + ": " + reason;
  return text;
}

std::span<const AttentionImplementation> attention_implementations() {
  static const std::vector<AttentionImplementation> rows = attention_rows();
  return rows;
}

std::span<const MatrixStateImplementation> matrix_state_implementations() {
  static const std::vector<MatrixStateImplementation> rows = matrix_state_rows();
  return rows;
}

ImplementationText matrix_state_text(const Call& call) {
  Call piece = call;
  StatePieces pieces;
  if (call.device == at::kCUDA) pieces = state_pieces(call.shape, call.form, call.dtype, call.compute_capability);
  const auto by = [](int64_t rows, int64_t columns) { return std::to_string(rows) + " × " + std::to_string(columns); };
  piece.shape.key_dim = piece_size(call.shape.key_dim, pieces.rows);
  piece.shape.value_dim = piece_size(call.shape.value_dim, pieces.columns);
  ImplementationText text = implementation_text(matrix_state_implementations(), piece);
  if (pieces != StatePieces{})
    text.name +=
        " in " + by(pieces.rows, pieces.columns) + " pieces of " + by(piece.shape.key_dim, piece.shape.value_dim);
  return text;
}

}  // namespace lethe
