#pragma once
// One problem through the CUDA kernels, forward and backward.

#include <algorithm>
#include <functional>
#include <vector>

#include "tests/cuda/attention.hpp"

namespace lethe::testing {

/// The gradient of the values: [B, Tq, Hq, V] ~ N(0, 1), rounded to the problem's dtype.
inline std::vector<double> grad_values_of(const Problem& problem, uint64_t seed) {
  const Shape& s = problem.shape;
  return random_problem({s.batch, s.query_length, s.query_length, 1, s.query_heads, s.value_dim, 1}, problem.dtype,
                        Gate::kZero, seed)
      .query;
}

struct BackwardResult {
  std::vector<double> values;             ///< [B, Tq, Hq, D], of the forward
  std::vector<double> query, key, value;  ///< [B, T, heads, D]
  std::vector<double> log_forget;         ///< [B, Tk, Hq]
};

/// Whether all gradients are the same, bit by bit.
inline void expect_same_gradients(const BackwardResult& actual, const BackwardResult& expected) {
  EXPECT_EQ(actual.query, expected.query);
  EXPECT_EQ(actual.key, expected.key);
  EXPECT_EQ(actual.value, expected.value);
  EXPECT_EQ(actual.log_forget, expected.log_forget);
}

/// A gradient [B, T, heads, D] as columns of a wider array: tokens and sequences lie further apart than they are long, heads by
/// columns_between_heads.
template <typename Element>
class GradientColumns {
 public:
  GradientColumns(int64_t batch, int64_t length, int64_t heads, int64_t dim)
      : batch_(batch), length_(length), heads_(heads), dim_(dim), array_(batch * (length + kTokensBetween) * pitch()) {}

  MutableOperand operand() const { return {array_.data(), (length_ + kTokensBetween) * pitch(), pitch(), head_pitch_}; }

  /// Its numbers. Fails the test where anything was written between them.
  std::vector<double> host() const {
    const std::vector<Element> all = array_.host();
    std::vector<double> numbers(batch_ * length_ * heads_ * dim_);
    auto next = numbers.begin();
    int64_t written = 0;
    for (int64_t row = 0; row < batch_ * (length_ + kTokensBetween); ++row) {
      auto at = all.begin() + row * pitch();
      const auto end = at + pitch();
      const int64_t heads = row % (length_ + kTokensBetween) < length_ ? heads_ : 0;
      for (int64_t head = 0; head < heads; ++head, at += head_pitch_) {
        next = std::transform(at, at + dim_, next, [](const Element& element) { return to_double(element); });
        written += std::count_if(at + dim_, at + head_pitch_, is_written);
      }
      written += std::count_if(at, end, is_written);
    }
    EXPECT_EQ(written, 0) << "elements beside the gradient's";
    return numbers;
  }

 private:
  static constexpr int64_t kColumnsBetween = 8, kTokensBetween = 1;  // 16 bytes of the narrow types
  static bool is_written(const Element& element) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&element);
    return std::any_of(bytes, bytes + sizeof(Element), [](unsigned char byte) { return byte != 0xff; });
  }
  int64_t pitch() const { return heads_ * head_pitch_ + kColumnsBetween; }
  int64_t batch_, length_, heads_, dim_, head_pitch_ = dim_ + columns_between_heads;
  DeviceArray<Element> array_;
};

/// The options of a backward, its plan apart; the defaults are the operator's.
struct BackwardOptions {
  bool deterministic = false, float_sums = true;
  bool behind_plan = false;  ///< begins under the plan's kernels, with nothing between, as the operator's does
  int times = 1;             ///< on one plan
  std::function<void()> before = [] {}, after = [] {};  ///< its launch; `after` when it has ended on the default stream
};

template <typename Kernels, typename Element>
BackwardResult backward(const Problem& problem, const std::vector<double>& grad_values, const BackwardOptions& how,
                        const PlanOptions& options) {
  const Shape& s = problem.shape;
  const DeviceProblem<Element, Kernels> device(problem, options);
  const int64_t rows = s.batch * s.query_heads * s.query_length;
  const DeviceArray<Element> values(rows * s.value_dim), residual(rows * s.value_dim),
      grad(elements_of_heads<Element>(grad_values, s.value_dim));
  const DeviceArray<float> log_normalizer(rows), grad_log_forget(s.batch * s.key_length * s.query_heads);
  const DeviceArray<int64_t> visited_pairs(s.batch * s.query_heads);
  const GradientColumns<Element> query(s.batch, s.query_length, s.query_heads, s.key_dim),
      key(s.batch, s.key_length, s.heads, s.key_dim), value(s.batch, s.key_length, s.heads, s.value_dim);
  const DeviceArray<char> memory(Kernels::backward_passes_bytes(s));
  poison_shared_memory();
  Kernels::launch_forward(
      device.forward_arguments(values.data(), residual.data(), log_normalizer.data(), visited_pairs.data()),
      device.plan());
  const auto of_forward = [&](const DeviceArray<Element>& array) {
    return Operand{array.data(), s.query_length * s.query_heads * s.key_dim, s.query_heads * s.key_dim, s.key_dim};
  };
  const typename Kernels::Plan plan = device.backward_plan();  // computed by kernels that use shared memory themselves
  if (!how.behind_plan) poison_shared_memory();
  how.before();
  for (int time = 0; time < how.times; ++time) {
    Workspace workspace(memory.data());
    Kernels::launch_backward({.shape = s,
                              .dtype = problem.dtype,
                              .scale = problem.scale,
                              .query = device.query(),
                              .key = device.key(),
                              .value = device.value(),
                              .gates = device.gates(),
                              .values = of_forward(values),
                              .residual = of_forward(residual),
                              .grad_values = operand_of_heads(grad.data(), s.query_length, s.query_heads, s.value_dim),
                              .log_normalizer = log_normalizer.data(),
                              .first_key_block = device.first_key_block(),
                              .grad_query = query.operand(),
                              .grad_key = key.operand(),
                              .grad_value = value.operand(),
                              .grad_log_forget = grad_log_forget.data(),
                              .workspace = nullptr,
                              .deterministic = how.deterministic,
                              .float_sums = how.float_sums,
                              .stream = nullptr},
                             workspace, plan);
  }
  require(cudaStreamSynchronize(nullptr));
  how.after();
  const std::vector<float> gate = grad_log_forget.host();
  memory.host();  // checks the canary
  residual.host();
  return {to_doubles(values.host()), query.host(), key.host(), value.host(), {gate.begin(), gate.end()}};
}

inline BackwardResult run_backward(const Problem& problem, const std::vector<double>& grad_values,
                                   const BackwardOptions& how = {}, const PlanOptions& options = {}) {
  return with_kernels(problem.dtype, [&]<typename Kernels, typename Element> {
    return backward<Kernels, Element>(problem, grad_values, how, options);
  });
}

/// Both with sums of dS in 16 bits and in float, where there are both: they are instances of the kernel, and every property of one must hold of both.
inline std::vector<BackwardResult> of_both_sums(const Problem& problem, const std::vector<double>& grad_values,
                                                const PlanOptions& options = {}, bool deterministic = false) {
  std::vector<BackwardResult> results;
  for (const bool float_sums : kinds_of_sums(problem.shape))
    results.push_back(run_backward(problem, grad_values, {deterministic, float_sums}, options));
  return results;
}

}  // namespace lethe::testing
