#pragma once
// Heads to test on, and access to their tensors.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "reference/head.hpp"
#include "reference/problem.hpp"
#include "reference/variant.hpp"

namespace lethe {

inline constexpr Gate kEveryGate[] = {Gate::kOpen,  Gate::kInitial, Gate::kStrong,
                                      Gate::kSpiky, Gate::kZero,    Gate::kCutting};

struct Lengths {
  int64_t query, key;
};

/// Lengths around the tiles of 16, 32 and 64 of the block algorithms, with as many queries as keys and with fewer.
inline constexpr Lengths kLengthsAroundTheTile[] = {{1, 1},     {2, 2},  {17, 17}, {63, 63}, {64, 64}, {65, 65},
                                                    {257, 257}, {1, 17}, {17, 64}, {63, 65}, {64, 257}};

inline std::string describe(const Lengths& lengths, Gate gate) {
  return "Tq = " + std::to_string(lengths.query) + ", Tk = " + std::to_string(lengths.key) + ", gate " +
         gate_name(gate);
}

/// Random values for the inputs that a problem lacks: gates of the same kind, write strengths in (0, 1], an initial state
/// and an initial normalizer above zero, as positive features add up to.
inline void fill_linear_inputs(Head& head, Gate gate, uint64_t seed) {
  const Eigen::Index keys = head.key.rows(), key_dim = head.key.cols(), value_dim = head.value.cols();
  const auto gates = [&](Eigen::Index width, Gate kind, uint64_t seed) -> Matrix<double> {
    const Shape shape{.key_length = keys, .heads = width, .query_heads = width};
    const Problem problem = random_problem(shape, Dtype::kFloat64, kind, seed);
    return Eigen::Map<const Matrix<double>>(problem.log_forget.data(), keys, width);
  };
  head.log_key_gate = gates(key_dim, gate, seed + 1);
  head.log_value_gate = gates(value_dim, gate, seed + 2);
  head.write_strength = gates(1, Gate::kInitial, seed + 3).array().exp();
  const Shape shape{.key_length = key_dim, .key_dim = 1, .value_dim = value_dim};
  const Problem initial = random_problem(shape, Dtype::kFloat64, gate, seed + 4);
  head.initial_state = Eigen::Map<const Matrix<double>>(initial.value.data(), key_dim, value_dim);
  head.initial_normalizer = Eigen::Map<const Vector<double>>(initial.key.data(), key_dim).array().abs() + 0.5;
}

/// Every head of a random problem, by default of two batch entries and three heads, with K ≠ V.
inline std::vector<Head> random_heads(const Lengths& lengths, Gate gate, int64_t batches = 2, int64_t heads = 3) {
  const Shape shape{.batch = batches,
                    .query_length = lengths.query,
                    .key_length = lengths.key,
                    .heads = heads,
                    .query_heads = heads,
                    .key_dim = 5,
                    .value_dim = 3};
  const Problem problem = random_problem(shape, Dtype::kFloat64, gate, 1);
  std::vector<Head> result;
  for (int64_t batch = 0; batch < batches; ++batch) {
    for (int64_t head = 0; head < heads; ++head) {
      result.push_back(head_of(problem, batch, head));
      fill_linear_inputs(result.back(), gate, 10 * result.size());
    }
  }
  return result;
}

inline Head random_head(const Lengths& lengths, Gate gate) { return random_heads(lengths, gate, 1, 1).front(); }

/// ∂loss/∂values of a random linear loss.
inline Matrix<double> random_values_gradient(const Head& head, uint64_t seed = 2) {
  const Shape shape{.key_length = head.query.rows(), .value_dim = head.value.cols()};
  const Problem problem = random_problem(shape, Dtype::kFloat64, Gate::kZero, seed);
  return Eigen::Map<const Matrix<double>>(problem.value.data(), head.query.rows(), head.value.cols());
}

/// ∂loss/∂state and ∂loss/∂normalizer of a random linear loss, shaped as `output` has them.
inline Matrix<double> random_state_gradient(const Output& output, uint64_t seed = 5) {
  const Shape shape{.key_length = std::max<int64_t>(1, output.state.size())};
  const Problem problem = random_problem(shape, Dtype::kFloat64, Gate::kZero, seed);
  return Eigen::Map<const Matrix<double>>(problem.value.data(), output.state.rows(), output.state.cols());
}
inline Vector<double> random_normalizer_gradient(const Output& output, uint64_t seed = 6) {
  const Shape shape{.key_length = std::max<int64_t>(1, output.normalizer.size())};
  const Problem problem = random_problem(shape, Dtype::kFloat64, Gate::kZero, seed);
  return Eigen::Map<const Vector<double>>(problem.value.data(), output.normalizer.size());
}

/// A vector or matrix as the flat tensor that compare() reads.
template <typename Tensor>
std::span<const double> flat(const Tensor& tensor) {
  return {tensor.data(), static_cast<size_t>(tensor.size())};
}

/// The same head in another precision. Inputs in float are rounded, so compare against the head from as_double.
template <typename To, typename From>
BasicHead<To> head_as(const BasicHead<From>& head) {
  return {head.query.template cast<To>(),
          head.key.template cast<To>(),
          head.value.template cast<To>(),
          head.log_forget.template cast<To>(),
          static_cast<To>(head.scale),
          head.log_key_gate.template cast<To>(),
          head.log_value_gate.template cast<To>(),
          head.write_strength.template cast<To>(),
          head.initial_state.template cast<To>(),
          head.initial_normalizer.template cast<To>()};
}
inline BasicHead<float> as_float(const Head& head) { return head_as<float>(head); }
inline Head as_double(const BasicHead<float>& head) { return head_as<double>(head); }

/// The tensor of a head, or of its gradients, that `input` names.
template <typename HeadOrGradients>
auto entries(HeadOrGradients& tensors, reference::Input input) {
  using Entry = std::remove_pointer_t<decltype(tensors.query.data())>;
  const auto view = [](auto& tensor) { return std::span<Entry>(tensor.data(), static_cast<size_t>(tensor.size())); };
  switch (input) {
    case reference::Input::kQuery: return view(tensors.query);
    case reference::Input::kKey: return view(tensors.key);
    case reference::Input::kValue: return view(tensors.value);
    case reference::Input::kLogForget: return view(tensors.log_forget);
    case reference::Input::kLogKeyGate: return view(tensors.log_key_gate);
    case reference::Input::kLogValueGate: return view(tensors.log_value_gate);
    case reference::Input::kWriteStrength: return view(tensors.write_strength);
    case reference::Input::kInitialState: return view(tensors.initial_state);
    case reference::Input::kInitialNormalizer: return view(tensors.initial_normalizer);
  }
  return std::span<Entry>();
}

inline constexpr reference::Input kEveryInput[] = {
    reference::Input::kQuery,         reference::Input::kKey,          reference::Input::kValue,
    reference::Input::kLogForget,     reference::Input::kLogKeyGate,   reference::Input::kLogValueGate,
    reference::Input::kWriteStrength, reference::Input::kInitialState, reference::Input::kInitialNormalizer};

inline const char* input_name(reference::Input input) {
  constexpr const char* kNames[] = {"query",          "key",           "value",
                                    "log_forget",     "log_key_gate",  "log_value_gate",
                                    "write_strength", "initial_state", "initial_normalizer"};
  return kNames[static_cast<int>(input)];
}

/// Whether `variant` reads `input`.
inline bool reads(const reference::Variant& variant, reference::Input input) {
  return std::ranges::count(variant.inputs, input) > 0;
}

/// Whether the input's rows are positions of the sequence, and not those of a state.
inline bool has_positions(reference::Input input) {
  return input != reference::Input::kInitialState && input != reference::Input::kInitialNormalizer;
}

inline bool is_log_gate(reference::Input input) {
  return input == reference::Input::kLogForget || input == reference::Input::kLogKeyGate ||
         input == reference::Input::kLogValueGate;
}

/// Chunks of one position, of some, and of the tile's size, so that sequences end within, at and after a chunk.
inline constexpr Eigen::Index kChunkLengths[] = {1, 3, 8, 16, 64};

/// Every form of a variant under its name, the chunked one once a chunk length.
struct NamedForm {
  std::string name;
  reference::Variant::Form compute;
};
inline std::vector<NamedForm> forms(const reference::Variant& variant) {
  std::vector<NamedForm> result{{"recurrent", variant.recurrent}, {"parallel", variant.parallel}};
  if (variant.chunked) {
    for (Eigen::Index length : kChunkLengths) {
      result.push_back({"chunks of " + std::to_string(length),
                        [chunked = variant.chunked, length](const Head& head) { return chunked(head, length); }});
    }
  }
  return result;
}

}  // namespace lethe

namespace lethe::reference {

inline void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

}  // namespace lethe::reference
