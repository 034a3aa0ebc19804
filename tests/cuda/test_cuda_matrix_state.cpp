// gated_state and delta_state by each family of their kernels, without Torch: values, last state and every gradient of a small call against the
// reference, twice with the same bits. Calls are small for compute-sanitizer's sake.

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "optimized/cuda/matrix_state.hpp"
#include "optimized/kept_states.hpp"
#include "reference/agreement.hpp"
#include "reference/decay_fast_weights.hpp"
#include "reference/gated_delta_fast_weights.hpp"
#include "reference/gated_linear_attention.hpp"
#include "tests/cuda/device.hpp"
#include "tests/cuda/matrix_state_calls.hpp"
#include "tests/cuda/poison.hpp"

namespace lethe {
namespace {

using testing::DeviceArray;
using Gate = MatrixStateForm::Gate;
using Numbers = std::vector<double>;

// Normal deviates, and logarithms of gates, rounded to float.
Problem drawn(int64_t count, uint64_t seed) {
  return random_problem({.query_length = count, .key_length = count}, Dtype::kFloat32, lethe::Gate::kInitial, seed);
}
Numbers normal(int64_t count, uint64_t seed) { return drawn(count, seed).query; }
// [B, T, H, columns]: in every second head of a mean near e^(−1/64), so that what one chunk hands to the next counts; in the others near e^(−1/8), so that a
// gate that is left out does.
Numbers log_gates(int64_t tokens, int64_t columns, uint64_t seed) {
  Numbers gates = drawn(tokens * columns, seed).log_forget;
  for (size_t i = 0; i < gates.size(); ++i)
    gates[i] = static_cast<float>(gates[i] / (static_cast<int64_t>(i) / columns % kHeads % 2 ? 6 : 48));
  return gates;
}

// The inputs of a call and the gradients that arrive, [B, T, H, ·] or [B, H, K, ·], as a kernel reads them.
struct Inputs {
  Numbers query, key, value, key_gate, value_gate, beta, state, grad_values, grad_state;

  explicit Inputs(const Call& call) {
    const int64_t tokens = call.all_heads() * call.length, columns = call.columns + call.form.normalize;
    query = normal(tokens * call.rows, 1);
    key = normal(tokens * call.rows, 2);
    value = normal(tokens * call.columns, 3);
    grad_values = normal(tokens * call.columns, 4);
    state = normal(call.all_heads() * call.rows * columns, 5);
    grad_state = normal(call.all_heads() * call.rows * columns, 6);
    if (call.form.key_gate != Gate::kNone)
      key_gate = log_gates(tokens, call.form.key_gate == Gate::kKey ? call.rows : 1, 7);
    if (call.form.value_gate) value_gate = log_gates(tokens, call.columns, 8);
    if (!call.states)
      for (Numbers* none : {&state, &grad_state}) none->clear();
    if (call.form.normalize)
      for (Numbers* features : {&query, &key, &state})
        for (double& number : *features) number = std::fabs(number);
    for (int64_t i = 0; i < tokens; ++i) {
      double squares = 0;
      for (int64_t row = 0; row < call.rows; ++row) squares += key[i * call.rows + row] * key[i * call.rows + row];
      for (int64_t row = 0; row < call.rows; ++row) key[i * call.rows + row] /= std::sqrt(squares);
    }
    if (call.form.delta)
      for (const double gate : drawn(tokens, 9).log_forget) beta.push_back(static_cast<float>(std::exp(gate)));
    for (Numbers* tensor : {&query, &key, &value, &grad_values})
      for (double& number : *tensor) number = round_to(call.dtype, number);
  }
};

// A head's [T, columns] of [B, T, H, columns].
Matrix<double> of_tokens(const Numbers& all, const Call& call, int64_t head, int64_t columns) {
  if (all.empty()) return {};
  Matrix<double> one(call.length, columns);
  for (int64_t t = 0; t < call.length; ++t)
    for (int64_t c = 0; c < columns; ++c)
      one(t, c) = all[((head / kHeads * call.length + t) * kHeads + head % kHeads) * columns + c];
  return one;
}
// A head's [K, columns] of [B, H, K, width], from a column on.
Matrix<double> of_state(const Numbers& all, const Call& call, int64_t head, int64_t from, int64_t columns) {
  if (all.empty()) return {};
  const int64_t width = call.columns + call.form.normalize;
  Matrix<double> one(call.rows, columns);
  for (int64_t r = 0; r < call.rows; ++r)
    for (int64_t c = 0; c < columns; ++c) one(r, c) = all[(head * call.rows + r) * width + from + c];
  return one;
}

double scale_of(const Call& call) { return call.form.normalize ? 1 : 1 / std::sqrt(static_cast<double>(call.rows)); }

using Results = std::map<std::string, std::vector<Matrix<double>>>;  // by name, of each head

void append(Results& results, const char* name, const Matrix<double>& found) {
  if (found.size() > 0) results[name].push_back(found);
}

Results expected_of(const Call& call, const Inputs& in) {
  Results results;
  for (int64_t h = 0; h < call.all_heads(); ++h) {
    const bool per_row = call.form.key_gate == Gate::kKey;
    Head head{.query = of_tokens(in.query, call, h, call.rows),
              .key = of_tokens(in.key, call, h, call.rows),
              .value = of_tokens(in.value, call, h, call.columns),
              .log_forget = {},
              .scale = scale_of(call)};
    if (per_row) head.log_key_gate = of_tokens(in.key_gate, call, h, call.rows);
    else if (!in.key_gate.empty()) head.log_forget = of_tokens(in.key_gate, call, h, 1).col(0);
    head.log_value_gate = of_tokens(in.value_gate, call, h, call.columns);
    if (!in.beta.empty()) head.write_strength = of_tokens(in.beta, call, h, 1).col(0);
    head.initial_state = of_state(in.state, call, h, 0, call.columns);
    const Matrix<double> grad_values = of_tokens(in.grad_values, call, h, call.columns);
    Matrix<double> grad_state = of_state(in.grad_state, call, h, 0, call.columns);
    if (!call.states) grad_state.setZero(call.rows, call.columns);
    Output out;
    Gradients gradients;
    if (call.form.delta) {
      out = reference::gated_delta_fast_weights::recurrent(head);
      gradients = reference::gated_delta_fast_weights::gradients(head, grad_values, grad_state);
    } else if (call.form.key_gate == Gate::kToken) {
      using namespace reference::gated_linear_attention;
      const auto normalized = call.form.normalize ? reference::Normalized::kYes : reference::Normalized::kNo;
      Vector<double> grad_normalizer;
      if (call.form.normalize) {
        head.initial_normalizer = of_state(in.state, call, h, call.columns, 1).col(0);
        grad_normalizer = of_state(in.grad_state, call, h, call.columns, 1).col(0);
      }
      out = recurrent(head, normalized);
      gradients =
          reference::gated_linear_attention::gradients(head, normalized, grad_values, grad_state, grad_normalizer);
    } else {
      out = reference::decay_fast_weights::recurrent(head);
      gradients = reference::decay_fast_weights::gradients(head, grad_values, grad_state);
    }
    append(results, "values", out.values);
    append(results, "last state", out.state);
    append(results, "last normalizer", out.normalizer);
    append(results, "query", gradients.query);
    append(results, "key", gradients.key);
    append(results, "value", gradients.value);
    append(results, "key gate", per_row ? gradients.log_key_gate : Matrix<double>(gradients.log_forget));
    append(results, "value gate", gradients.log_value_gate);
    append(results, "beta", gradients.write_strength);
    if (call.states) append(results, "state", gradients.initial_state);
    append(results, "normalizer", gradients.initial_normalizer);
  }
  return results;
}

template <typename Element>
Numbers numbers(const DeviceArray<Element>& array) {
  Numbers found;
  for (const Element& element : array.host()) found.push_back(static_cast<float>(element));
  return found;
}

// What the kernels write, by name, as they lay it out. `poisoned`: shared memory is NaN before them. kept_bytes: of the states that the forward
// leaves for the backward.
template <typename Element>
std::map<std::string, Numbers> run(const MatrixStateFamily& family, const Call& call, const Inputs& in, bool poisoned,
                                   int64_t kept_bytes) {
  const auto uploaded = [](const Numbers& given) { return std::vector<float>(given.begin(), given.end()); };
  const auto elements = [&](const Numbers& given) { return testing::to_element<Element>(uploaded(given)); };
  const DeviceArray<Element> query(elements(in.query)), key(elements(in.key)), value(elements(in.value)),
      grad_values(elements(in.grad_values)), values(in.value.size()), grad_query(in.query.size()),
      grad_key(in.key.size()), grad_value(in.value.size());
  const DeviceArray<float> key_gate(uploaded(in.key_gate)), value_gate(uploaded(in.value_gate)),
      beta(uploaded(in.beta)), state(uploaded(in.state)), grad_state(uploaded(in.grad_state)),
      last_state(call.all_heads() * call.rows * (call.columns + call.form.normalize)),
      grad_key_gate(in.key_gate.size()), grad_value_gate(in.value_gate.size()), grad_beta(in.beta.size()),
      grad_initial_state(in.state.size());
  const auto operand = [&](const void* data, int64_t columns) {
    return Operand{data, call.length * kHeads * columns, kHeads * columns, columns};
  };
  const auto if_any = [](const DeviceArray<float>& array) { return array.size() > 0 ? array.data() : nullptr; };
  MatrixStateInput input{};
  input.shape = shape_of(call);
  input.dtype = call.dtype;
  input.form = call.form;
  input.scale = scale_of(call);
  input.query = operand(query.data(), call.rows);
  input.key = operand(key.data(), call.rows);
  input.value = operand(value.data(), call.columns);
  input.key_gate = operand(if_any(key_gate), call.form.key_gate == Gate::kKey ? call.rows : 1);
  input.value_gate = operand(if_any(value_gate), call.columns);
  input.beta = {if_any(beta), call.length * kHeads, kHeads, 1};
  input.initial_state = if_any(state);
  MatrixStateForm backward_form = input.form;
  backward_form.kept_states = kept_bytes > 0;
  const DeviceArray<char> forward_memory(family.forward_workspace_bytes(input.shape, input.form)),
      backward_memory(family.backward_workspace_bytes(input.shape, backward_form)), kept_states(kept_bytes);

  if (poisoned) testing::poison_shared_memory();
  MatrixStateForward forward{};
  static_cast<MatrixStateInput&>(forward) = input;
  forward.values = values.data();
  forward.last_state = last_state.data();
  forward.workspace = forward_memory.data();
  forward.kept_states = kept_bytes > 0 ? kept_states.data() : nullptr;
  family.forward(forward);

  if (poisoned) testing::poison_shared_memory();
  MatrixStateBackward backward{};
  static_cast<MatrixStateInput&>(backward) = input;
  backward.form = backward_form;
  backward.kept_states = forward.kept_states;
  backward.grad_values = operand(grad_values.data(), call.columns);
  backward.grad_last_state = if_any(grad_state);
  backward.grad_query = grad_query.data();
  backward.grad_key = grad_key.data();
  backward.grad_value = grad_value.data();
  backward.grad_key_gate = if_any(grad_key_gate);
  backward.grad_value_gate = if_any(grad_value_gate);
  backward.grad_beta = if_any(grad_beta);
  backward.grad_initial_state = if_any(grad_initial_state);
  backward.workspace = backward_memory.data();
  family.backward(backward);
  return {{"values", numbers(values)},
          {"last state", numbers(last_state)},
          {"query", numbers(grad_query)},
          {"key", numbers(grad_key)},
          {"value", numbers(grad_value)},
          {"key gate", numbers(grad_key_gate)},
          {"value gate", numbers(grad_value_gate)},
          {"beta", numbers(grad_beta)},
          {"state", numbers(grad_initial_state)}};
}

std::map<std::string, Numbers> run(const MatrixStateFamily& family, const Call& call, const Inputs& in, bool poisoned,
                                   int64_t kept_bytes = 0) {
  if (call.dtype == Dtype::kFloat32) return run<float>(family, call, in, poisoned, kept_bytes);
  return call.dtype == Dtype::kFloat16 ? run<__half>(family, call, in, poisoned, kept_bytes)
                                       : run<__nv_bfloat16>(family, call, in, poisoned, kept_bytes);
}

// The same by head; a normaliser is the last column of a state.
Results of_heads(const Call& call, const std::map<std::string, Numbers>& found) {
  Results results;
  for (int64_t h = 0; h < call.all_heads(); ++h) {
    const auto tokens = [&](const char* name, int64_t columns) {
      append(results, name, of_tokens(found.at(name), call, h, columns));
    };
    tokens("values", call.columns);
    tokens("query", call.rows);
    tokens("key", call.rows);
    tokens("value", call.columns);
    tokens("key gate", call.form.key_gate == Gate::kKey ? call.rows : 1);
    tokens("value gate", call.columns);
    tokens("beta", 1);
    for (const auto& [state, normalizer] : {std::pair{"last state", "last normalizer"}, {"state", "normalizer"}}) {
      append(results, state, of_state(found.at(state), call, h, 0, call.columns));
      if (call.form.normalize) append(results, normalizer, of_state(found.at(state), call, h, call.columns, 1));
    }
  }
  return results;
}

// The first family that takes the call, as the operators choose it; null where only another device has kernels for it.
const MatrixStateFamily* family_of(const Call& call) {
  const Shape shape = shape_of(call);
  for (const MatrixStateFamily& family : matrix_state_families()) {
    if (!family.unsupported(shape, call.form, call.dtype, compute_capability(0)).empty()) continue;
    const bool runs = !call.form.normalize ||
                      (family.normalizes(shape, call.form, false) && family.normalizes(shape, call.form, true));
    return runs && family.name == std::string(call.family) ? &family : nullptr;
  }
  return nullptr;
}

void expect_agreement(const Call& call, const Results& expected, const Results& actual) {
  ASSERT_EQ(actual.size(), expected.size());
  const double roundings = 4 * budget(call.dtype);
  for (const auto& [name, heads] : expected) {
    ASSERT_EQ(actual.count(name), 1U) << name;
    const bool gate = name.find("gate") != std::string::npos;
    for (size_t h = 0; h < heads.size(); ++h) {
      const Matrix<double>& one = actual.at(name)[h];
      const size_t size = heads[h].size();
      const Agreement agreement =
          compare({one.data(), size}, {heads[h].data(), size}, gate ? std::max(roundings, 3e-3) : roundings);
      EXPECT_EQ(static_cast<size_t>(one.size()), size) << name;
      EXPECT_TRUE(agreement.passed()) << name << " of head " << h << ": " << agreement.describe();
    }
  }
}

class MatrixState : public ::testing::TestWithParam<Call> {};

TEST_P(MatrixState, EqualsTheReferenceWithTheSameBitsTwice) {
  LETHE_NEEDS_ANY_GPU();
  const Call& call = GetParam();
  const MatrixStateFamily* family = family_of(call);
  if (!family) {
    ASSERT_NE(compute_capability(0), 90) << "expected " << call.family;
    GTEST_SKIP() << "other kernels run it here";
  }
  const Inputs in(call);
  const std::map<std::string, Numbers> found = run(*family, call, in, true);
  EXPECT_TRUE(run(*family, call, in, false) == found) << "other bits in the second run";
  const Results expected = expected_of(call, in);
  expect_agreement(call, expected, of_heads(call, found));

  // A backward that reads the states that its forward left.
  const Shape shape = shape_of(call);
  const int64_t kept = compute_capability(0) != 90
                           ? 0
                           : call.all_heads() * kept_state_bytes<int64_t>(shape.key_length, shape.key_dim,
                                                                          shape.value_dim, call.form, call.dtype);
  const bool leaves = std::string(call.name).find("in_segments") != std::string::npos ||
                      (call.family == std::string(kDeltas) && call.length > 64);
  EXPECT_EQ(kept > 0, compute_capability(0) == 90 && leaves);
  if (kept == 0) return;
  const std::map<std::string, Numbers> read = run(*family, call, in, true, kept);
  EXPECT_TRUE(run(*family, call, in, false, kept) == read) << "other bits in the second run with kept states";
  expect_agreement(call, expected, of_heads(call, read));
}

INSTANTIATE_TEST_SUITE_P(Calls, MatrixState, ::testing::ValuesIn(kCalls),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lethe
