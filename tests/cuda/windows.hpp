#pragma once
// Calls whose queries see a part of the past: windows smaller than the sequence, and packed sequences.

#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/against_reference.hpp"

namespace lethe::testing {

/// The kernels' window for as long as it lives. A test's own: SetUp of EveryKernel has set another.
class WindowUnderTest {
 public:
  explicit WindowUnderTest(const Sight& sight)
      : before_(std::exchange(window_under_test, int(std::min<int64_t>(sight.window, kLargestWindow)))) {}
  ~WindowUnderTest() { window_under_test = before_; }
  WindowUnderTest(const WindowUnderTest&) = delete;
  WindowUnderTest& operator=(const WindowUnderTest&) = delete;

 private:
  int before_;
};

/// The problem with a cut at the start of each sequence but the first, as the operator hands cu_seqlens to the kernels.
inline Problem packed(Problem problem, const Sight& sight) {
  const Shape& s = problem.shape;
  for (const int64_t start : sight.cu_seqlens)
    for (int64_t batch = 0; start > 0 && start < s.key_length && batch < s.batch; ++batch)
      std::fill_n(problem.log_forget.begin() + (batch * s.key_length + start) * s.query_heads, s.query_heads,
                  -INFINITY);
  return problem;
}

struct Call {
  std::string name;
  Problem problem;
  Sight sight;
};

/// A window with fewer queries than keys; packed sequences; a window in each of them; a window over strong gates, which a second launch computes.
template <typename ShapeOf>
std::vector<Call> calls_of_a_few_tokens(Dtype dtype, ShapeOf shape) {
  const Sight packed_alone{.cu_seqlens = {0, 5, 5, 69, 140, 200}}, both{.window = 66, .cu_seqlens = {0, 130, 200}};
  const Problem whole = random_problem(shape(1, 200, 200, 1, 2), dtype, Gate::kOpen, 51),
                end = random_problem(shape(1, 150, 200, 1, 2), dtype, Gate::kInitial, 52);
  return {{"window", random_problem(shape(1, 150, 200, 1, 2), dtype, Gate::kOpen, 50), {.window = 70}},
          {"packed", packed(whole, packed_alone), packed_alone},
          {"packed, window", packed(whole, both), both},
          {"strong, window", with_strong_gates(end).back().second, {.window = 90}}};
}

}  // namespace lethe::testing
