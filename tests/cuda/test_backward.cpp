// The backward kernels against the reference, per head, over every dtype, head dim and feature.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/cuda/against_reference.hpp"
#include "tests/cuda/backward.hpp"
#include "tests/cuda/every_kernel.hpp"

namespace lethe {
namespace {

using testing::BackwardResult;
using testing::expect_same_gradients;
using testing::grad_values_of;
using testing::kGradientNames;
using testing::of_both_sums;
using testing::Shares;
using testing::worst_shares;

void expect_agreement(const Problem& problem, const testing::PlanOptions& options = {}, bool deterministic = false,
                      double allowed = 1) {
  const std::vector<double> grad = grad_values_of(problem, 99);
  const Shares worst = worst_shares(problem, grad, of_both_sums(problem, grad, options, deterministic));
  for (int i = 0; i < 4; ++i) EXPECT_LE(worst[i], allowed) << kGradientNames[i];
}

class Backward : public testing::EveryKernel {};

TEST_P(Backward, EqualsTheReferenceAtEveryLengthAroundATile) {
  for (const int64_t length : {1, 2, 17, 63, 64, 65, 127, 128, 129, 255, 257, 640}) {
    SCOPED_TRACE(length);
    expect_agreement(random_problem(shape(2, length, length, 3, 3), dtype(), Gate::kInitial, length));
  }
}

TEST_P(Backward, EqualsTheReferenceForEveryGate) {
  const bool two_kernels =
      std::get<testing::Family>(GetParam()) == testing::Family::kAmpere && dtype() != Dtype::kFloat32 && dim() == 64;
  for (const Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kSpiky, Gate::kZero, Gate::kCutting}) {
    SCOPED_TRACE(gate_name(gate));
    const Problem problem = random_problem(shape(1, 900, 900, 2, 2), dtype(), gate, 5);
    expect_agreement(problem);
    // In the fixed order two kernels, which GPUs with less shared memory run at this head dim always.
    if (two_kernels) expect_agreement(problem, {}, true);
  }
}

TEST_P(Backward, AlignsFewerQueriesAtTheEnd) {
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{1, 300}, {5, 128}, {100, 700}, {130, 131}, {256, 640}, {300, 333}}) {
    SCOPED_TRACE(std::to_string(queries) + " of " + std::to_string(keys));
    expect_agreement(random_problem(shape(2, queries, keys, 2, 2), dtype(), Gate::kCutting, 7));
    expect_agreement(random_problem(shape(1, queries, keys, 1, 1), dtype(), Gate::kInitial, 8));
  }
}

TEST_P(Backward, KeepsToOneCutAnywhereInABlock) {
  for (const int64_t offset : {0, 100})
    for (const int64_t cut : {1, 127, 128, 129, 256, 384}) {
      SCOPED_TRACE(cut);
      Problem problem = random_problem(shape(1, 640 - offset, 640, 1, 1), dtype(), Gate::kOpen, 22);
      problem.log_forget[cut] = -INFINITY;
      expect_agreement(problem);
    }
}

TEST_P(Backward, NanGateAffectsOnlyQueriesThatSeeItsBlock) {
  constexpr int64_t kKeys = 1500, kHeads = 4, kHead = 2, kToken = 700, kBlock = kToken / kGateBlock * kGateBlock;
  for (const auto& [queries, strong] :  // 37: a tile's queries are in two blocks
       {std::pair{kKeys, false}, {kKeys - 37, false}, {kKeys - 37, true}}) {
    SCOPED_TRACE(std::to_string(queries) + (strong ? ", strong" : ""));
    Problem problem = random_problem(shape(2, queries, kKeys, kHeads, kHeads), dtype(), Gate::kInitial, 13);
    if (strong)
      for (int64_t t = 3; t < kKeys; t += 5) problem.log_forget[t * kHeads + kHead] = -1000;
    const std::vector<double> grad = grad_values_of(problem, 99);
    const BackwardResult clean = testing::run_backward(problem, grad);
    problem.log_forget[kToken * kHeads + kHead] = std::numeric_limits<double>::quiet_NaN();  // of the first batch entry
    const int64_t dim = problem.shape.key_dim;
    for (const BackwardResult& result : of_both_sums(problem, grad)) {
      for (int64_t i = 0; i < int64_t(clean.query.size()); ++i) {
        const int64_t head = i / dim % kHeads, query = i / dim / kHeads % queries, position = query + kKeys - queries,
                      batch = i / dim / kHeads / queries;
        const bool of_head = batch == 0 && head == kHead;
        const bool near =
            std::fabs(result.query[i] - clean.query[i]) <= 0.02;  // millions of numbers: no macro for each
        if (of_head && position >= kToken ? std::isnan(result.query[i]) : (of_head && position >= kBlock) || near)
          continue;
        FAIL() << batch << ", " << head << ", " << query << ": " << clean.query[i] << ", found " << result.query[i];
      }
      for (const auto& [found, expected] : {std::pair{&result.key, &clean.key},
                                            {&result.value, &clean.value},
                                            {&result.log_forget, &clean.log_forget}}) {
        const int64_t width = found == &result.log_forget ? 1 : dim;
        for (int64_t i = 0; i < int64_t(found->size()); ++i) {
          if (i / width / kHeads / kKeys == 0 && i / width % kHeads == kHead) continue;
          if (!(std::fabs((*found)[i] - (*expected)[i]) <= 0.05))
            FAIL() << i << ": " << (*expected)[i] << ", found " << (*found)[i];
        }
      }
    }
  }
}

// Entry 0 is in no logit, and after a cut nothing depends on its log f.
TEST_P(Backward, GivesTheFirstGateAndCutsNoGradientAtAll) {
  const Problem problem = random_problem(shape(2, 700, 700, 2, 2), dtype(), Gate::kCutting, 24);
  for (const BackwardResult& result : of_both_sums(problem, grad_values_of(problem, 99))) {
    int64_t zeros = 0;
    for (size_t i = 0; i < result.log_forget.size(); ++i) {
      if (problem.log_forget[i] > -INFINITY && i / 2 % 700 > 0) continue;
      EXPECT_EQ(result.log_forget[i], 0) << i;
      ++zeros;
    }
    EXPECT_GT(zeros, 8);
  }
}

TEST_P(Backward, ResolvesPairsNearStrongGates) {
  // 127: a tile's first query is a block's last key. An open head beside it, of the same keys or of its own
  for (const auto& [queries, keys, heads] :
       {std::tuple<int64_t, int64_t, int64_t>{600, 600, 1}, {503, 540, 2}, {413, 540, 2}})
    for (const auto& [name, problem] :
         testing::with_strong_gates(random_problem(shape(1, queries, keys, heads, 2), dtype(), Gate::kInitial, 19))) {
      SCOPED_TRACE(name + ", " + std::to_string(queries) + " of " + std::to_string(keys));
      const bool pruned = queries == 503;
      expect_agreement(problem, {.log_pruning_tolerance = pruned ? -20 : -INFINITY}, pruned);
    }
}

TEST_P(Backward, ResolvesPairsNearStrongGatesOfAFewTokensInTheFixedOrder) {
  const auto problems =
      testing::with_strong_gates(random_problem(shape(1, 150, 200, 1, 2), dtype(), Gate::kInitial, 21));
  expect_agreement(problems.back().second, {}, true);
}

// In float32, floats of 512 are up to 3·10⁻⁵ off.
TEST_P(Backward, ResolvesPairsWhereGatesAreAlmostStrong) {
  for (const auto& problem :
       testing::with_almost_strong_gates(random_problem(shape(1, 603, 640, 1, 2), dtype(), Gate::kInitial, 19)))
    expect_agreement(problem, {}, false, dtype() == Dtype::kFloat32 ? 2 : 1);
}

TEST_P(Backward, ResolvesPairsNearStrongGatesAndCuts) {
  for (auto [name, problem] :
       testing::with_strong_gates(random_problem(shape(1, 503, 540, 1, 2), dtype(), Gate::kOpen, 20))) {
    SCOPED_TRACE(name);
    for (const int64_t cut : {1, 64, 65, 300, 511}) problem.log_forget[2 * cut + 1] = -INFINITY;
    expect_agreement(problem);
  }
}

TEST_P(Backward, ResolvesPairsNearStrongGatesWithAnyScale) {
  for (const double scale : {-0.125, 0.0, 1e-30}) {
    SCOPED_TRACE(scale);
    Problem problem = random_problem(shape(1, 300, 300, 1, 1), dtype(), Gate::kInitial, 11);
    for (int64_t t = 0; t < 300; t += 3) problem.log_forget[t] = -1000;
    problem.scale = scale;
    expect_agreement(problem);
  }
}

// After them the gate's sums reach about 400 000, where a float has steps of 1/32; only their differences matter.
TEST_P(Backward, ResolvesGatesAfterStrongOnes) {
  Problem problem = random_problem(shape(1, 900, 900, 1, 1), dtype(), Gate::kOpen, 27);
  for (int64_t token = 80; token < kGateBlock; ++token) problem.log_forget[token] = -9000;
  problem.log_forget[kGateBlock] = -INFINITY;
  expect_agreement(problem);
}

TEST_P(Backward, SumsOverAGroupOfQueryHeads) {
  expect_agreement(random_problem(shape(2, 333, 400, 2, 6), dtype(), Gate::kInitial, 9));
  // keys before the first query, with some weight left: a group's heads follow one another there without a diagonal between
  expect_agreement(random_problem(shape(1, 333, 500, 1, 3), dtype(), Gate::kOpen, 9));
}

TEST_P(Backward, HoldsForManyTiles) {
  expect_agreement(random_problem(shape(1, 1500, 1500, 2, 2), dtype(), Gate::kOpen, 10));
}

TEST_P(Backward, TakesAnyScale) {
  for (const double scale : {-0.125, 0.0, 1e-30}) {  // the kernels divide the bias by it
    SCOPED_TRACE(scale);
    Problem problem = random_problem(shape(1, 300, 300, 1, 1), dtype(), Gate::kInitial, 11);
    problem.scale = scale;
    expect_agreement(problem);
  }
}

TEST_P(Backward, GivesTheSameBitsTwiceInTheFixedOrder) {
  for (const double tolerance : {-std::numeric_limits<double>::infinity(), -10.0}) {
    const Problem problem = random_problem(shape(1, 900, 1100, 2, 4), dtype(), Gate::kInitial, 12);
    const testing::PlanOptions options{.log_pruning_tolerance = tolerance};
    const std::vector<double> grad = grad_values_of(problem, 99);
    const std::vector<BackwardResult> firsts = of_both_sums(problem, grad, options, true),
                                      seconds = of_both_sums(problem, grad, options, true);
    for (size_t i = 0; i < firsts.size(); ++i) expect_same_gradients(firsts[i], seconds[i]);
    // The summation of dS does not affect the other gradients, nor any where there is one kind of it.
    const BackwardResult other = testing::run_backward(problem, grad, {true, false}, options);
    EXPECT_EQ(other.query, firsts.back().query);
    EXPECT_EQ(other.key, firsts.back().key);
    EXPECT_EQ(other.value, firsts.back().value);
    if (firsts.size() == 1) {
      EXPECT_EQ(other.log_forget, firsts.back().log_forget);
    }
    expect_agreement(problem, options, true);
  }
}

TEST_P(Backward, AgreesWithTheReferenceWhenPruned) {
  for (const Gate gate : {Gate::kInitial, Gate::kSpiky, Gate::kCutting}) {
    SCOPED_TRACE(gate_name(gate));
    expect_agreement(random_problem(shape(1, 1100, 1300, 2, 4), dtype(), gate, 14), {.log_pruning_tolerance = -12});
  }
}

// The same of fewer tokens, for tools that take long.
TEST_P(Backward, AgreesWithTheReferenceOfAFewTokensWhenPruned) {
  for (const Gate gate : {Gate::kInitial, Gate::kSpiky, Gate::kCutting}) {
    SCOPED_TRACE(gate_name(gate));
    const Problem problem = random_problem(shape(1, 400, 500, 1, 2), dtype(), gate, 14);
    const testing::PlanOptions options{.log_pruning_tolerance = -12};
    EXPECT_GT(std::ranges::max(testing::run_forward(problem, options).first_key_block), 0);
    expect_agreement(problem, options);
  }
}

// Keys that no query may see are NaN once the boundary is found: a kernel that visited more would return NaN.
TEST_P(Backward, ReadsNothingOfWhatIsPruned) {
  const Problem problem = random_problem(shape(2, 200, 2000, 2, 4), dtype(), Gate::kInitial, 33);
  const std::vector<double> grad = grad_values_of(problem, 99);
  testing::PlanOptions options{.log_pruning_tolerance = -10};
  const std::vector<BackwardResult> clean = of_both_sums(problem, grad, options, true);
  const testing::ForwardResult forward = testing::run_forward(problem, options);
  options.poisoned_keys = kGateBlock * *std::ranges::min_element(forward.first_key_block);
  EXPECT_GE(options.poisoned_keys, 8 * kGateBlock);
  const std::vector<BackwardResult> poisoned = of_both_sums(problem, grad, options, true);
  for (size_t i = 0; i < clean.size(); ++i) expect_same_gradients(poisoned[i], clean[i]);
}

TEST_P(Backward, RefusesWhatAWrongFormulaWouldGive) {
  Problem problem = random_problem(shape(1, 512, 512, 1, 1), dtype(), Gate::kInitial, 16);
  const std::vector<double> grad = grad_values_of(problem, 99);
  BackwardResult result = testing::run_backward(problem, grad);
  std::rotate(problem.log_forget.begin(), problem.log_forget.begin() + 1,
              problem.log_forget.end());  // gate off by one token
  for (const double share : worst_shares(problem, grad, {result})) EXPECT_GT(share, 3);
  std::rotate(problem.log_forget.rbegin(), problem.log_forget.rbegin() + 1, problem.log_forget.rend());
  std::rotate(result.log_forget.begin(), result.log_forget.begin() + 1,
              result.log_forget.end());  // its gradient off by one
  EXPECT_GT(worst_shares(problem, grad, {result})[3], 3);
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, Backward, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, Backward, testing::window_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfShortRows, Backward, testing::short_rows(Dtype::kBFloat16), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfShorterRows, Backward, testing::short_rows(Dtype::kFloat16), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, Backward, testing::ampere_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfLessShared, Backward, testing::ampere_instances_of_less(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfFloats, Backward, testing::float_instances(), testing::name_of_instance);

class BackwardOfShortRows : public testing::EveryKernel {};

TEST_P(BackwardOfShortRows, EqualsTheReferenceAndItsOwnBits) {
  const Problem problem = random_problem(shape(2, 190, 433, 2, 4), dtype(), Gate::kInitial, 41);
  const testing::PlanOptions pruned{.log_pruning_tolerance = -10};
  expect_agreement(problem, pruned);
  const std::vector<double> grad = grad_values_of(problem, 99);
  const std::vector<BackwardResult> firsts = of_both_sums(problem, grad, pruned, true),
                                    seconds = of_both_sums(problem, grad, pruned, true);
  for (size_t i = 0; i < firsts.size(); ++i) expect_same_gradients(firsts[i], seconds[i]);
  const auto strong = testing::with_strong_gates(random_problem(shape(1, 300, 300, 1, 2), dtype(), Gate::kCutting, 42));
  expect_agreement(strong.back().second);
}

INSTANTIATE_TEST_SUITE_P(EveryHeadDim, BackwardOfShortRows, testing::other_short_rows(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(AboveTheSecondInstance, BackwardOfShortRows, testing::wide_short_rows(),
                         testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, BackwardOfShortRows, testing::ampere_short_rows(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfLessShared, BackwardOfShortRows, testing::ampere_short_rows(testing::Family::kAmpereOfLess),
                         testing::name_of_instance);

}  // namespace
}  // namespace lethe
