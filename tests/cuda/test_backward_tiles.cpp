// The order of the backward's main kernel: which CTA computes which key tile when, one tile after the other, in the fixed order and in any.

#include <algorithm>
#include <limits>
#include <optional>

#include "reference/agreement.hpp"
#include "tests/cuda/backward.hpp"
#include "tests/cuda/every_kernel.hpp"
#include "tests/cuda/held.hpp"

namespace lethe {
namespace {

using testing::BackwardOptions;
using testing::BackwardResult;
using testing::expect_same_gradients;
using testing::grad_values_of;
using testing::of_both_sums;
using testing::slice;

class BackwardTiles : public testing::EveryKernel {};

// More key tiles than CTAs run at a time, of several waves: without its turns dQ is added up in another order each time.
TEST_P(BackwardTiles, GivesTheSameBitsInTheFixedOrderInEveryRun) {
  const Problem problem = random_problem(shape(1, 4096, 4096, 12, 12), dtype(), Gate::kOpen, 31);
  const std::vector<double> grad = grad_values_of(problem, 99);
  const std::vector<BackwardResult> firsts = of_both_sums(problem, grad, {}, true);
  for (int again = 0; again < 3; ++again) {
    const std::vector<BackwardResult> others = of_both_sums(problem, grad, {}, true);
    for (size_t i = 0; i < firsts.size(); ++i) expect_same_gradients(others[i], firsts[i]);
  }
}

// A group's first head is cut in the middle. Its key tiles before the cut finish early and reach the second head before those after the cut, which
// add to its dQ first where it is alone. Without turns the bits would differ.
TEST_P(BackwardTiles, GivesAHeadTheBitsInTheFixedOrderThatItHasAlone) {
  constexpr int64_t kLength = 4096;
  Problem both = random_problem(shape(1, kLength, kLength, 1, 2), dtype(), Gate::kOpen, 32), alone = both;
  both.log_forget[kLength / 2 * 2] = -INFINITY;
  const std::vector<double> grad = grad_values_of(both, 99);
  const int64_t dim = both.shape.key_dim;
  const auto of_second = [&](const std::vector<double>& tensor, int64_t width) {
    return slice(tensor, kLength, 2, width, 0, 1);
  };
  alone.shape = shape(1, kLength, kLength, 1, 1);
  alone.query = of_second(both.query, dim);
  alone.log_forget = of_second(both.log_forget, 1);
  // The blocks across the cut are skipped, and no others.
  const testing::PlanOptions options{.log_pruning_tolerance = -30};
  const BackwardOptions in_order{.deterministic = true};
  const BackwardResult of_both = testing::run_backward(both, grad, in_order, options),
                       of_one = testing::run_backward(alone, of_second(grad, dim), in_order, options);
  EXPECT_EQ(of_second(of_both.query, dim), of_one.query);
}

// The problem with its batch entries repeated `times` over.
Problem repeated(const Problem& problem, int64_t times) {
  Problem result = problem;
  result.shape.batch *= times;
  for (const auto tensor : {&Problem::query, &Problem::key, &Problem::value, &Problem::log_forget})
    for (int64_t time = 1; time < times; ++time)
      (result.*tensor).insert((result.*tensor).end(), (problem.*tensor).begin(), (problem.*tensor).end());
  return result;
}

// Key tiles that no query of their group's heads sees.
int64_t empty_tiles(const Problem& problem, const testing::PlanOptions& options) {
  const Shape& s = problem.shape;
  const std::vector<int32_t> first = testing::run_forward(problem, options).first_key_block;
  const int64_t group = s.query_heads / s.heads, blocks = first.size() / (s.batch * s.query_heads);
  int64_t empty = 0;
  for (int64_t row = 0; row < s.batch * s.heads; ++row)  // (batch, key head)
    empty += *std::min_element(first.begin() + row * group * blocks, first.begin() + (row + 1) * group * blocks);
  return empty;
}

// A problem's batch entries have the same gradients alone, when each CTA has one tile, and repeated so many times, when each has many. Bit by bit;
// without the fixed order dQ and the gradient from its row sums are compared within the budget.
void expect_the_same_in_many_tiles(const Problem& problem, int64_t times, const testing::PlanOptions& options) {
  const Problem many = repeated(problem, times);
  const std::vector<double> grad = grad_values_of(problem, 99);
  std::vector<double> grads;
  for (int64_t time = 0; time < times; ++time) grads.insert(grads.end(), grad.begin(), grad.end());
  const std::vector<BackwardResult> alone = of_both_sums(problem, grad, options, true),
                                    in_order = of_both_sums(many, grads, options, true),
                                    in_any = of_both_sums(many, grads, options, false);
  for (int64_t time = 0; time < times; ++time) {
    SCOPED_TRACE(time);
    const auto part = [&](const std::vector<double>& tensor) {
      const auto begin = tensor.begin() + time * tensor.size() / times;
      return std::vector<double>(begin, begin + tensor.size() / times);
    };
    const auto here = [&](const BackwardResult& of_all) {
      return BackwardResult{part(of_all.values), part(of_all.query), part(of_all.key), part(of_all.value),
                            part(of_all.log_forget)};
    };
    for (size_t i = 0; i < alone.size(); ++i) {
      expect_same_gradients(here(in_order[i]), alone[i]);
      const BackwardResult any = here(in_any[i]);
      EXPECT_EQ(any.key, alone[i].key);
      EXPECT_EQ(any.value, alone[i].value);
      EXPECT_LE(compare(any.query, alone[i].query, 1).error, budget(problem.dtype));
      EXPECT_LE(compare(any.log_forget, alone[i].log_forget, 1).error, budget(problem.dtype));
    }
  }
}

// A CTA computes several tiles, one after the other: on most GPUs four.
TEST_P(BackwardTiles, GivesATileWhatItHasAlone) {
  Problem problem = random_problem(shape(8, 200, 333, 2, 4), dtype(), Gate::kCutting, 35);
  for (size_t i = 0; i < problem.log_forget.size(); i += 3 * problem.log_forget.size() / problem.shape.batch)
    problem.log_forget[i + 400] = -9000;  // strong gates in every third
  const testing::PlanOptions options{.log_pruning_tolerance = -10};
  EXPECT_GT(empty_tiles(problem, options), 0);
  expect_the_same_in_many_tiles(problem, 10, options);
}

// Eight tiles a CTA on average; a large share of them, many in a row, is seen by no query.
TEST_P(BackwardTiles, GivesATileAfterEmptyOnesWhatItHasAlone) {
  constexpr int64_t kBatch = 8, kQueries = 130, kKeys = 1300;
  Problem problem = random_problem(shape(kBatch, kQueries, kKeys, 1, 1), dtype(), Gate::kOpen, 36);
  for (int64_t batch = 0; batch < kBatch; batch += 2) problem.log_forget[batch * kKeys + kKeys - kQueries] = -INFINITY;
  const testing::PlanOptions options{.log_pruning_tolerance = -10};
  EXPECT_EQ(empty_tiles(problem, options), kBatch / 2 * ((kKeys - kQueries) / kGateBlock));
  expect_the_same_in_many_tiles(problem, 12, options);
}

// A CTA that has not begun has no tile. If each had its first tile from the beginning, the later tiles, here more than the free multiprocessors,
// would wait for tiles of CTAs that have not begun, and none would end.
TEST_P(BackwardTiles, WaitsInTheFixedOrderForNoCtaThatHasNotStarted) {
  const Problem problem = random_problem(shape(1, 2048, 2048, 12, 12), dtype(), Gate::kOpen, 37);
  const std::vector<double> grad = grad_values_of(problem, 99);
  for (const bool float_sums : testing::kinds_of_sums(problem.shape)) {
    BackwardOptions how{.deterministic = true, .float_sums = float_sums};
    // This also loads the kernels, which waits for all running ones.
    const BackwardResult expected = testing::run_backward(problem, grad, how);
    std::optional<testing::HeldMultiprocessors> held;
    how.before = [&] { held.emplace(32); };
    how.after = [&] { EXPECT_TRUE(held->release()); };
    expect_same_gradients(testing::run_backward(problem, grad, how), expected);
  }
}

// The backward begins before the plan is computed, and counts its tiles anew each time.
TEST_P(BackwardTiles, MayBeginUnderThePlanAndServesItTwice) {
  const Problem problem = random_problem(shape(1, 16384, 16384, 1, 1), dtype(), Gate::kOpen, 38);
  const std::vector<double> grad = grad_values_of(problem, 99);
  for (const bool float_sums : testing::kinds_of_sums(problem.shape)) {
    BackwardOptions how{.deterministic = true, .float_sums = float_sums};
    const BackwardResult expected = testing::run_backward(problem, grad, how);
    how.behind_plan = true;
    for (how.times = 1; how.times <= 2; ++how.times) {
      SCOPED_TRACE(how.times);
      expect_same_gradients(testing::run_backward(problem, grad, how), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, BackwardTiles, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, BackwardTiles, testing::window_instances(), testing::name_of_instance);

}  // namespace
}  // namespace lethe
