// The operators' registration with Torch: schemas, derivatives, shapes. Each public operator completes its arguments and calls an internal one,
// `_NAME_forward`; a second, `_NAME_backward`, computes its gradients. The derivative is written in terms of their schemas alone (rules.hpp), and a
// table of implementations runs them (implementations.hpp).
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "optimized/operators/attention.hpp"
#include "optimized/operators/matrix_state.hpp"
#include "optimized/torch/forgetting_attention.hpp"
#include "optimized/torch/implementations.hpp"
#include "optimized/torch/matrix_state.hpp"
#include "optimized/torch/packed.hpp"
#include "optimized/torch/rules.hpp"
#include "optimized/torch/state_pieces.hpp"

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

at::Tensor contiguous_like(const Tensor& tensor) { return at::empty_symint(tensor.sym_sizes(), tensor.options()); }

// ---- Forgetting Attention

constexpr const char* kAttentionArguments =
    "(Tensor query, Tensor key, Tensor value, Tensor log_forget, *, float? scale=None, float? "
    "log_pruning_tolerance=None, Tensor? logit_bound=None, int? window=None, Tensor? cu_seqlens=None, "
    "bool prune_by_mass=True)";
constexpr const char* kAttentionForward =
    "_forgetting_attention_forward(Tensor query, Tensor key, Tensor value, Tensor log_forget, float scale, "
    "float? log_pruning_tolerance, Tensor? logit_bound, int? window, bool prune_by_mass, bool keep_residual) "
    "-> (Tensor values, Tensor log_normalizer, Tensor visited_pairs, Tensor boundary, Tensor residual)";
constexpr const char* kAttentionBackward =
    "_forgetting_attention_backward(Tensor grad_values, Tensor query, Tensor key, Tensor value, Tensor log_forget, "
    "Tensor values, Tensor residual, Tensor log_normalizer, Tensor boundary, float scale, int? window) "
    "-> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_log_forget)";

// `run` with the arguments of kAttentionForward.
template <AttentionOutputs (*run)(const AttentionInputs&)>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> attention_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_forget, double scale,
    std::optional<double> log_pruning_tolerance, const OptionalTensor& logit_bound, std::optional<int64_t> window,
    bool prune_by_mass, bool keep_residual) {
  auto out = run(
      {query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound, keep_residual, window, prune_by_mass});
  return {out.values, out.log_normalizer, out.visited_pairs, out.boundary, out.residual};
}

// `run` with the arguments of kAttentionBackward.
template <AttentionGradients (*run)(const Tensor&, const AttentionInputs&, const AttentionOutputs&)>
std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(const Tensor& grad_values, const Tensor& query,
                                                              const Tensor& key, const Tensor& value,
                                                              const Tensor& log_forget, const Tensor& values,
                                                              const Tensor& residual, const Tensor& log_normalizer,
                                                              const Tensor& boundary, double scale,
                                                              std::optional<int64_t> window) {
  auto gradients = run(grad_values, {query, key, value, log_forget, scale, std::nullopt, std::nullopt, false, window},
                       {values, log_normalizer, Tensor(), boundary, residual});
  return {gradients.query, gradients.key, gradients.value, gradients.log_forget};
}

AttentionOutputs attention_shapes(const AttentionInputs& in) {
  check_arguments(in);
  const c10::SymInt batch = in.query.sym_size(0), length = in.query.sym_size(1), heads = in.query.sym_size(2);
  const at::TensorOptions options = in.query.options();
  const Tensor values = at::empty_symint({batch, length, heads, in.value.sym_size(3)}, options);
  const bool has_elements = in.keep_residual && has_residual(in.query.scalar_type());
  return {
      .values = values,
      .log_normalizer = at::empty_symint({batch, length, heads}, in.log_forget.options()),
      .visited_pairs = at::empty_symint({batch, heads}, options.dtype(at::kLong)),
      .boundary = at::empty_symint({batch, heads, (length + (kQueryRows - 1)) / kQueryRows}, options.dtype(at::kInt)),
      .residual = has_elements ? at::empty_like(values) : at::empty({0}, options)};
}

AttentionGradients attention_gradient_shapes(const Tensor& grad_values, const AttentionInputs& in,
                                             const AttentionOutputs& out) {
  check_gradient_arguments(grad_values, in, out);
  return {contiguous_like(in.query), contiguous_like(in.key), contiguous_like(in.value),
          contiguous_like(in.log_forget)};
}

const AttentionImplementation& implementation_for(const AttentionInputs& in) {
  return implementation_of(attention_implementations(), call_of(in.query, in.key, in.value));
}

AttentionOutputs run_attention(const AttentionInputs& in) {
  check_arguments(in);
  return implementation_for(in).forward(in);
}

AttentionGradients run_attention_backward(const Tensor& grad_values, const AttentionInputs& in,
                                          const AttentionOutputs& out) {
  check_gradient_arguments(grad_values, in, out);
  return implementation_for(in).backward(grad_values, in, out);
}

std::string attention_implementation(const Tensor& query, const Tensor& key, const Tensor& value) {
  check_rank("query", query, 4, "[B,Tq,Hq,D]");
  check_rank("key", key, 4, "[B,Tk,H,D]");
  check_rank("value", value, 4, "[B,Tk,H,Dv]");
  return implementation_name(attention_implementations(), call_of(query, key, value));
}

// The arguments of kAttentionArguments after the tensors.
struct AttentionOptions {
  std::optional<double> scale, log_pruning_tolerance;
  const OptionalTensor& logit_bound;
  std::optional<int64_t> window;
  const OptionalTensor& cu_seqlens;
  bool prune_by_mass;
};

// The results of kAttentionForward; with cu_seqlens of gates with cuts.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> call_attention(const Tensor& query, const Tensor& key,
                                                                  const Tensor& value, const Tensor& log_forget,
                                                                  const AttentionOptions& options) {
  check_layout("query", query);
  check_layout("key", key);
  check_layout("value", value);
  check_layout("log_forget", log_forget);
  if (options.logit_bound) check_layout("logit_bound", *options.logit_bound);
  Tensor gate = log_forget;
  std::optional<int64_t> window = options.window;
  if (options.cu_seqlens) {
    TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && query.sym_size(1) == key.sym_size(1),
                "query: expected as many tokens as key with cu_seqlens, found shapes ", query.sym_sizes(), " and ",
                key.sym_sizes());
    gate = gate_of_sequences("log_forget", log_forget, *options.cu_seqlens, "query", query);
    if (!window) window = kWindowOfSequences;
  }
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_forgetting_attention_forward", "")
                             .typed<decltype(attention_forward<run_attention>)>();
  // Whether a gradient needs the residual is decided below, where the derivative is recorded.
  return op.call(query, key, value, gate, options.scale ? *options.scale : default_scale(query),
                 options.log_pruning_tolerance, options.logit_bound, window, options.prune_by_mass, false);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> forgetting_attention_with_statistics(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_forget, std::optional<double> scale,
    std::optional<double> log_pruning_tolerance, const OptionalTensor& logit_bound, std::optional<int64_t> window,
    const OptionalTensor& cu_seqlens, bool prune_by_mass) {
  auto [values, log_normalizer, visited_pairs, boundary, residual] = call_attention(
      query, key, value, log_forget, {scale, log_pruning_tolerance, logit_bound, window, cu_seqlens, prune_by_mass});
  if (cu_seqlens)
    visited_pairs = visited_pairs_of_sequences(boundary, *cu_seqlens, query.sym_size(1), kQueryRows,
                                               key_block_of(query.device().type()));
  return {values, log_normalizer, visited_pairs};
}

Tensor forgetting_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_forget,
                            std::optional<double> scale, std::optional<double> log_pruning_tolerance,
                            const OptionalTensor& logit_bound, std::optional<int64_t> window,
                            const OptionalTensor& cu_seqlens, bool prune_by_mass) {
  return std::get<0>(call_attention(query, key, value, log_forget,
                                    {scale, log_pruning_tolerance, logit_bound, window, cu_seqlens, prune_by_mass}));
}

// ---- Matrix state

namespace {

constexpr const char* kGatedState =
    "gated_state(Tensor query, Tensor key, Tensor value, Tensor? log_key_gate, Tensor? log_value_gate, Tensor? "
    "state=None, *, float? scale=None, bool normalize=False, Tensor? cu_seqlens=None) -> (Tensor values, Tensor state)";
constexpr const char* kDeltaState =
    "delta_state(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor? log_key_gate=None, Tensor? "
    "state=None, *, float? scale=None, Tensor? cu_seqlens=None) -> (Tensor values, Tensor state)";
constexpr const char* kMatrixStateForward =
    "_matrix_state_forward(Tensor query, Tensor key, Tensor value, Tensor? log_key_gate, Tensor? log_value_gate, "
    "Tensor? beta, Tensor? state, float scale, bool normalize, bool? keep_residual=None) -> "
    "(Tensor values, Tensor last_state, Tensor kept_states)";
constexpr const char* kMatrixStateBackward =
    "_matrix_state_backward(Tensor grad_values, Tensor? grad_last_state, Tensor query, Tensor key, Tensor value, "
    "Tensor? log_key_gate, Tensor? log_value_gate, Tensor? beta, Tensor? state, Tensor kept_states, float scale, "
    "bool normalize) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_log_key_gate, Tensor "
    "grad_log_value_gate, Tensor grad_beta, Tensor grad_state)";

// `run` with the arguments of kMatrixStateForward.
template <MatrixStateOutputs (*run)(const MatrixStateInputs&)>
std::tuple<Tensor, Tensor, Tensor> matrix_state_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                                        const OptionalTensor& log_key_gate,
                                                        const OptionalTensor& log_value_gate,
                                                        const OptionalTensor& beta, const OptionalTensor& state,
                                                        double scale, bool normalize,
                                                        std::optional<bool> keep_residual) {
  auto out = run(
      {query, key, value, log_key_gate, log_value_gate, beta, state, scale, normalize, keep_residual.value_or(false)});
  const bool kept = out.kept_states.defined();
  return {out.values, out.state, kept ? out.kept_states : at::empty({0}, query.options().dtype(at::kByte))};
}

// `run` with the arguments of kMatrixStateBackward.
template <MatrixStateGradients (*run)(const Tensor&, const Tensor&, const MatrixStateInputs&)>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> matrix_state_backward(
    const Tensor& grad_values, const OptionalTensor& grad_last_state, const Tensor& query, const Tensor& key,
    const Tensor& value, const OptionalTensor& log_key_gate, const OptionalTensor& log_value_gate,
    const OptionalTensor& beta, const OptionalTensor& state, const Tensor& kept_states, double scale, bool normalize) {
  auto gradients =
      run(grad_values, grad_last_state.value_or(Tensor()),
          {query, key, value, log_key_gate, log_value_gate, beta, state, scale, normalize, false, kept_states});
  return {gradients.query,          gradients.key,  gradients.value, gradients.log_key_gate,
          gradients.log_value_gate, gradients.beta, gradients.state};
}

MatrixStateOutputs matrix_state_shapes(const MatrixStateInputs& in) {
  check_arguments(in);
  const Tensor &query = in.query, &value = in.value;
  const c10::SymInt batch = query.sym_size(0), heads = query.sym_size(2);
  return {.values = at::empty_symint(value.sym_sizes(), query.options()),
          .state = at::empty_symint({batch, heads, query.sym_size(3), in.state_columns()},
                                    query.options().dtype(accumulation_dtype(query.scalar_type()))),
          .kept_states = in.keep_states
                             ? at::empty_symint({batch, heads, kept_state_bytes(in)}, query.options().dtype(at::kByte))
                             : Tensor()};
}

MatrixStateGradients matrix_state_gradient_shapes(const Tensor& grad_values, const Tensor& grad_state,
                                                  const MatrixStateInputs& in) {
  check_gradient_arguments(grad_values, grad_state, in);
  const auto like_given = [&](const OptionalTensor& tensor) {
    return tensor ? contiguous_like(*tensor)
                  : at::empty({0}, in.query.options().dtype(accumulation_dtype(in.query.scalar_type())));
  };
  return {contiguous_like(in.query),   contiguous_like(in.key),       contiguous_like(in.value),
          like_given(in.log_key_gate), like_given(in.log_value_gate), like_given(in.beta),
          like_given(in.state)};
}

const MatrixStateImplementation& implementation_for(const MatrixStateInputs& in) {
  return implementation_of(matrix_state_implementations(), call_of(in));
}

MatrixStateOutputs run_matrix_state(const MatrixStateInputs& in) {
  check_arguments(in);
  return implementation_for(in).forward(in);
}

MatrixStateGradients run_matrix_state_backward(const Tensor& grad_values, const Tensor& grad_state,
                                               const MatrixStateInputs& in) {
  check_gradient_arguments(grad_values, grad_state, in);
  return implementation_for(in).backward(grad_values, grad_state, in);
}

// What the argument keep_residual begins with: absent where the row that will run the call leaves no states.
std::optional<bool> states_to_keep(const MatrixStateInputs& in) {
  return leaves_states(in) ? std::optional(false) : std::nullopt;
}

std::tuple<Tensor, Tensor> call_internal_operator(const MatrixStateInputs& in) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_matrix_state_forward", "")
                             .typed<decltype(matrix_state_forward<run_matrix_state>)>();
  auto [values, last_state, kept_states] = op.call(in.query, in.key, in.value, in.log_key_gate, in.log_value_gate,
                                                   in.beta, in.state, in.scale, in.normalize, states_to_keep(in));
  return {values, last_state};
}

std::tuple<Tensor, Tensor> call_matrix_state(const Tensor& query, const Tensor& key, const Tensor& value,
                                             const OptionalTensor& log_key_gate, const OptionalTensor& log_value_gate,
                                             const OptionalTensor& beta, const OptionalTensor& state,
                                             std::optional<double> scale, bool normalize,
                                             const OptionalTensor& cu_seqlens) {
  check_layout("query", query);
  check_layout("key", key);
  check_layout("value", value);
  if (log_key_gate) check_layout("log_key_gate", *log_key_gate);
  if (log_value_gate) check_layout("log_value_gate", *log_value_gate);
  if (state) check_layout("state", *state);
  check_rank("query", query, 4, "[B,T,H,K]");
  if (cu_seqlens) {
    TORCH_CHECK(!state, "state: expected none with cu_seqlens, whose sequences begin with 0, found one");
    return call_matrix_state(query, key, value,
                             gate_of_sequences("log_key_gate", log_key_gate, *cu_seqlens, "query", query),
                             log_value_gate, beta, state, scale, normalize, std::nullopt);
  }
  const MatrixStateInputs in{
      query, key, value, log_key_gate, log_value_gate, beta, state, scale ? *scale : default_scale(query), normalize};
  const StatePieces pieces = pieces_of(in);
  return pieces == StatePieces{} ? call_internal_operator(in) : in_pieces(pieces, in, call_internal_operator);
}

}  // namespace

std::tuple<Tensor, Tensor> gated_state(const Tensor& query, const Tensor& key, const Tensor& value,
                                       const OptionalTensor& log_key_gate, const OptionalTensor& log_value_gate,
                                       const OptionalTensor& state, std::optional<double> scale, bool normalize,
                                       const OptionalTensor& cu_seqlens) {
  return call_matrix_state(query, key, value, log_key_gate, log_value_gate, std::nullopt, state, scale, normalize,
                           cu_seqlens);
}

std::tuple<Tensor, Tensor> delta_state(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                       const OptionalTensor& log_key_gate, const OptionalTensor& state,
                                       std::optional<double> scale, const OptionalTensor& cu_seqlens) {
  check_layout("query", query);
  check_layout("beta", beta);
  const bool is_narrow = beta.scalar_type() == query.scalar_type();
  return call_matrix_state(query, key, value, log_key_gate, std::nullopt,
                           is_narrow ? beta.to(accumulation_dtype(query.scalar_type())) : beta, state, scale, false,
                           cu_seqlens);
}

// ---- Registration

TORCH_LIBRARY(lethe, library) {
  const std::string arguments = kAttentionArguments;
  library.def(("forgetting_attention" + arguments + " -> Tensor").c_str(), forgetting_attention);
  library.def(("forgetting_attention_with_statistics" + arguments +
               " -> (Tensor values, Tensor log_normalizer, Tensor visited_pairs)")
                  .c_str(),
              forgetting_attention_with_statistics);
  library.def("forgetting_attention_implementation(Tensor query, Tensor key, Tensor value) -> str");
  library.def(kGatedState, gated_state);
  library.def(kDeltaState, delta_state);
  for (const char* schema : {kAttentionForward, kAttentionBackward, kMatrixStateForward, kMatrixStateBackward})
    library.def(schema);
}

void implement(torch::Library& library) {
  library.impl("_forgetting_attention_forward", attention_forward<run_attention>);
  library.impl("_forgetting_attention_backward", attention_backward<run_attention_backward>);
  library.impl("_matrix_state_forward", matrix_state_forward<run_matrix_state>);
  library.impl("_matrix_state_backward", matrix_state_backward<run_matrix_state_backward>);
  library.impl("forgetting_attention_implementation", attention_implementation);
}
TORCH_LIBRARY_IMPL(lethe, CPU, library) { implement(library); }
TORCH_LIBRARY_IMPL(lethe, CUDA, library) { implement(library); }

TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_forgetting_attention_forward", attention_forward<attention_shapes>);
  library.impl("_forgetting_attention_backward", attention_backward<attention_gradient_shapes>);
  library.impl("_matrix_state_forward", matrix_state_forward<matrix_state_shapes>);
  library.impl("_matrix_state_backward", matrix_state_backward<matrix_state_gradient_shapes>);
}

TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  for (const char* forward : {"_forgetting_attention_forward", "_matrix_state_forward"})
    library.impl(forward, derivative_rule());
  // A second derivative is an error that names the operator.
  for (const char* backward : {"_forgetting_attention_backward", "_matrix_state_backward"})
    library.impl(backward, torch::autograd::autogradNotImplementedFallback());
}

// Without these, vmap calls a public operator once for each element.
TORCH_LIBRARY_IMPL(lethe, FuncTorchBatchedDecomposition, library) {
  library.impl("forgetting_attention", forgetting_attention);
  library.impl("forgetting_attention_with_statistics", forgetting_attention_with_statistics);
  library.impl("gated_state", gated_state);
  library.impl("delta_state", delta_state);
}

TORCH_LIBRARY_IMPL(lethe, FuncTorchBatched, library) {
  for (const char* name : {"_forgetting_attention_forward", "_forgetting_attention_backward", "_matrix_state_forward",
                           "_matrix_state_backward"})
    library.impl(name, batching_rule());
}

template <c10::DeviceType device>
void implement_autocast(torch::Library& library) {
  for (const char* forward : {"_forgetting_attention_forward", "_matrix_state_forward"})
    library.impl(forward, autocast_rule<device>());
  for (const char* backward : {"_forgetting_attention_backward", "_matrix_state_backward"})
    library.impl(backward, no_autocast_rule<device>());
}
TORCH_LIBRARY_IMPL(lethe, AutocastCPU, library) { implement_autocast<c10::DeviceType::CPU>(library); }
TORCH_LIBRARY_IMPL(lethe, AutocastCUDA, library) { implement_autocast<c10::DeviceType::CUDA>(library); }

}  // namespace lethe
