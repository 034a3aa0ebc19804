#pragma once
// Heads to test on, and ways to look at them.

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

/// Around the tiles of 16, 32 and 64 that the block algorithms use, with as many queries as keys and with fewer.
inline constexpr Lengths kLengthsAroundTheTile[] = {{1, 1},     {2, 2},  {17, 17}, {63, 63}, {64, 64}, {65, 65},
                                                    {257, 257}, {1, 17}, {17, 64}, {63, 65}, {64, 257}};

inline std::string describe(const Lengths& lengths, Gate gate) {
  return "Tq = " + std::to_string(lengths.query) + ", Tk = " + std::to_string(lengths.key) + ", gate " +
         gate_name(gate);
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
    for (int64_t head = 0; head < heads; ++head) result.push_back(head_of(problem, batch, head));
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

/// A vector or matrix as the flat tensor that compare() reads.
template <typename Tensor>
std::span<const double> flat(const Tensor& tensor) {
  return {tensor.data(), static_cast<size_t>(tensor.size())};
}

/// The same head in float. Its inputs are rounded, so compare against the head that as_double gives back.
inline BasicHead<float> as_float(const Head& head) {
  return {head.query.cast<float>(), head.key.cast<float>(), head.value.cast<float>(), head.log_forget.cast<float>(),
          static_cast<float>(head.scale)};
}
inline Head as_double(const BasicHead<float>& head) {
  return {head.query.cast<double>(), head.key.cast<double>(), head.value.cast<double>(), head.log_forget.cast<double>(),
          static_cast<double>(head.scale)};
}

/// The tensor of a head, or of its gradients, that `input` names.
template <typename HeadOrGradients>
auto entries(HeadOrGradients& tensors, reference::Input input) {
  using Entry = std::remove_pointer_t<decltype(tensors.query.data())>;
  const auto view = [](auto& tensor) { return std::span<Entry>(tensor.data(), static_cast<size_t>(tensor.size())); };
  switch (input) {
    case reference::Input::kQuery:
      return view(tensors.query);
    case reference::Input::kKey:
      return view(tensors.key);
    case reference::Input::kValue:
      return view(tensors.value);
    case reference::Input::kLogForget:
      return view(tensors.log_forget);
  }
  return std::span<Entry>();
}

inline const char* input_name(reference::Input input) {
  constexpr const char* kNames[] = {"query", "key", "value", "log_forget"};
  return kNames[static_cast<int>(input)];
}

}  // namespace lethe

namespace lethe::reference {

inline void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

}  // namespace lethe::reference
