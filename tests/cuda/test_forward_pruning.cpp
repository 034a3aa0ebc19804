// The forward kernel's pruning: it skips the blocks that the bound allows, loses no weight above the tolerance, and skips nothing without one.

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "reference/agreement.hpp"
#include "tests/cuda/attention.hpp"
#include "tests/cuda/every_kernel.hpp"

namespace lethe {
namespace {

using testing::ForwardResult;

class ForwardPruning : public testing::EveryKernel {};

TEST_P(ForwardPruning, IgnoresABoundWithoutATolerance) {
  const Problem problem = random_problem(shape(2, 1000, 1000, 2, 2), dtype(), Gate::kCutting, 13);
  const ForwardResult unpruned = testing::run_forward(problem);
  const ForwardResult other = testing::run_forward(problem, {.logit_bound = std::vector<float>(4, 1.0f)});
  EXPECT_EQ(unpruned.values, other.values);
  EXPECT_EQ(unpruned.log_normalizer, other.log_normalizer);
  EXPECT_EQ(unpruned.visited_pairs, other.visited_pairs);
}

// Of all pairs no more than `share` is visited.
void expect_pruning(const Problem& problem, double share) {
  const ForwardResult whole = testing::run_forward(problem);
  const double log_tolerance = -10;
  std::vector<int64_t> by_weight;
  for (const bool by_mass : {false, true}) {
    const ForwardResult pruned =
        testing::run_forward(problem, {.log_pruning_tolerance = log_tolerance, .prune_by_mass = by_mass});
    EXPECT_EQ(pruned.visited_pairs, testing::boundary_pairs(problem.shape, pruned.first_key_block));
    for (size_t row = 0; row < whole.visited_pairs.size(); ++row) {
      EXPECT_LT(pruned.visited_pairs[row], share * whole.visited_pairs[row]);
      EXPECT_TRUE(!by_mass || pruned.visited_pairs[row] <= by_weight[row]) << row;
    }
    // The share left out of a row's sum is 1 − exp(difference of the normalisers).
    for (size_t i = 0; i < whole.log_normalizer.size(); ++i)
      ASSERT_LE(whole.log_normalizer[i] - pruned.log_normalizer[i], std::exp(log_tolerance) + 1e-5) << i;
    EXPECT_LE(compare(pruned.values, whole.values, 1).error, budget(problem.dtype));
    by_weight = pruned.visited_pairs;
  }
}

TEST_P(ForwardPruning, PrunesOnlyBlocksWhoseWeightIsBelowTheTolerance) {
  expect_pruning(random_problem(shape(2, 1100, 1300, 2, 4), dtype(), Gate::kInitial, 14), 0.5);
}

TEST_P(ForwardPruning, PrunesOnlySuchBlocksOfAFewTokens) {  // for tools that take long
  expect_pruning(random_problem(shape(1, 400, 700, 1, 2), dtype(), Gate::kInitial, 14), 0.75);
}

// Keys that no query may see are NaN once the boundary is found: a kernel that read more than it counts would return NaN.
TEST_P(ForwardPruning, ReadsNothingOfWhatIsPruned) {
  const Problem problem = random_problem(shape(2, 200, 2000, 2, 4), dtype(), Gate::kInitial, 33);
  testing::PlanOptions options{.log_pruning_tolerance = -10};
  const ForwardResult clean = testing::run_forward(problem, options);
  options.poisoned_keys = kGateBlock * *std::ranges::min_element(clean.first_key_block);
  EXPECT_GE(options.poisoned_keys, 8 * kGateBlock);
  const ForwardResult poisoned = testing::run_forward(problem, options);
  EXPECT_EQ(poisoned.values, clean.values);
  EXPECT_EQ(poisoned.log_normalizer, clean.log_normalizer);
}

// The worst case of pruning: every logit is U but the query's own key's, which is −U, and one gate puts all other keys near the threshold.
TEST_P(ForwardPruning, LosesAtMostTheToleranceWhereLogitsReachTheirBound) {
  constexpr int64_t kKeys = 1500, kPruned = (kKeys - 1) / kGateBlock * kGateBlock;
  constexpr double kLogTolerance = -5;
  Problem problem = random_problem(shape(1, 1, kKeys, 1, 1), dtype(), Gate::kZero, 30);
  const int64_t dim = problem.shape.key_dim;
  const double bound = problem.scale * dim / 4;
  std::fill(problem.query.begin(), problem.query.end(), 0.5);
  std::fill(problem.key.begin(), problem.key.end(), 0.5);
  std::fill(problem.key.end() - dim, problem.key.end(), -0.5);
  // Of open gates: the mass of the keys that are pruned is their number, nearly T; old keys that decay have less.
  for (const auto& [slack, decay, by_mass] : {std::tuple(-0.05, 0.0, false), std::tuple(0.05, 0.0, false),
                                              std::tuple(-0.05, -0.25, true), std::tuple(0.05, -0.25, true)}) {
    SCOPED_TRACE(::testing::Message() << slack << (by_mass ? " by mass" : " by weight"));
    for (double& gate : problem.log_forget) gate = decay;
    for (int64_t t = kPruned; t < kKeys; ++t) problem.log_forget[t] = 0;
    const double log_mass = by_mass ? -std::log1p(-std::exp(decay)) : std::log(double(kKeys));
    problem.log_forget.back() = static_cast<float>(-2 * bound - log_mass + kLogTolerance + slack);
    const ForwardResult whole = testing::run_forward(problem),
                        pruned = testing::run_forward(
                            problem, {.log_pruning_tolerance = kLogTolerance, .prune_by_mass = by_mass});
    const double lost = 1 - std::exp(pruned.log_normalizer[0] - whole.log_normalizer[0]);
    // Above the bound by mass it is one block that stays: those before it have decayed further.
    const int64_t skipped = slack < 0 ? kPruned : by_mass ? kPruned - kGateBlock : 0;
    EXPECT_EQ(pruned.visited_pairs[0], kKeys - skipped);
    EXPECT_LE(lost, std::exp(kLogTolerance));
    EXPECT_GE(lost, slack < 0 ? 0.8 * std::exp(kLogTolerance) : 0);
  }
}

// Heads that could be pruned beside heads that could not, in the same group and in different ones. The norms decide: gates forget slowly, and each
// key head and batch entry has its own largest norm, in the last rows.
TEST_P(ForwardPruning, PrunesByNormsAsByTheSameGivenBounds) {
  constexpr int64_t kHeads = 2, kQueryHeads = 4, kTokens = 3100;
  for (const std::vector<int64_t>& open_heads : {std::vector<int64_t>{}, {3}, {0, 2}, {2, 3}}) {
    Problem problem =
        random_problem(shape(2, kTokens - 200, kTokens, kHeads, kQueryHeads), dtype(), Gate::kInitial, 21);
    const int64_t dim = problem.shape.key_dim;
    for (double& gate : problem.log_forget) gate = static_cast<float>(gate / 16);
    for (int64_t token = 0; token < 2 * kTokens; ++token)
      for (const int64_t head : open_heads) problem.log_forget[token * kQueryHeads + head] = -1e-6f;
    for (int64_t batch = 0; batch < 2; ++batch)
      for (int64_t i = 0; i < kHeads * dim; ++i) {
        double& last_key = problem.key[((batch + 1) * kTokens - 1) * kHeads * dim + i];
        last_key = round_to(dtype(), last_key * (1.25 + 0.25 * (i / dim + 2 * batch)));
      }
    const auto largest_norm = [&](const auto& tensor, int64_t length, int64_t heads, int64_t batch, int64_t head) {
      double largest = 0;
      for (int64_t token = 0; token < length; ++token) {
        double square = 0;
        for (int64_t i = 0; i < dim; ++i) {
          const double x = tensor[((batch * length + token) * heads + head) * dim + i];
          square += x * x;
        }
        largest = std::max(largest, square);
      }
      return std::sqrt(largest);
    };
    std::vector<float> bounds;
    for (int64_t batch = 0; batch < 2; ++batch)
      for (int64_t head = 0; head < kQueryHeads; ++head)
        bounds.push_back(static_cast<float>(
            (1 + 1e-5) * problem.scale * largest_norm(problem.query, kTokens - 200, kQueryHeads, batch, head) *
            largest_norm(problem.key, kTokens, kHeads, batch, head / (kQueryHeads / kHeads))));
    const ForwardResult found = testing::run_forward(problem, {.log_pruning_tolerance = -10}),
                        given = testing::run_forward(problem, {.log_pruning_tolerance = -10, .logit_bound = bounds});
    EXPECT_EQ(found.first_key_block, given.first_key_block);
    EXPECT_EQ(found.last_query_block, given.last_query_block);
    EXPECT_EQ(found.visited_pairs, given.visited_pairs);
    EXPECT_EQ(found.values, given.values);
    EXPECT_EQ(found.log_normalizer, given.log_normalizer);
    const ForwardResult whole = testing::run_forward(problem);
    for (size_t row = 0; row < whole.visited_pairs.size(); ++row) {
      const bool open = std::ranges::find(open_heads, int64_t(row) % kQueryHeads) != open_heads.end();
      EXPECT_EQ(found.visited_pairs[row] == whole.visited_pairs[row], open) << row;
    }
  }
}

TEST_P(ForwardPruning, VisitsExactlyTheBlocksThatBruteForceKeeps) {
  for (const Gate gate : {Gate::kInitial, Gate::kSpiky, Gate::kCutting, Gate::kOpen}) {
    const Problem problem = random_problem(shape(1, 1100, 1300, 2, 2), dtype(), gate, 15);
    const float bound = 3;
    const double log_tolerance = -5;
    const ForwardResult result = testing::run_forward(
        problem, {.log_pruning_tolerance = log_tolerance, .logit_bound = std::vector<float>(2, bound)});
    const int64_t offset = 200, query_blocks = 9, key_blocks = 11;
    for (int64_t head = 0; head < 2; ++head) {
      const auto distance = [&](int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t l = j + 1; l <= i; ++l) sum += problem.log_forget[l * 2 + head];
        return sum;
      };
      for (int64_t m = 0; m < query_blocks; ++m) {
        const int64_t i = m * kGateBlock + offset;
        int64_t first = 0, begin = i, end = i + 1;  // of the query's sequence, between cuts
        while (begin > 0 && !std::isinf(problem.log_forget[begin * 2 + head])) --begin;
        while (end < 1300 && !std::isinf(problem.log_forget[end * 2 + head])) ++end;
        const double threshold = -2 * bound - std::log(double(end - begin)) + log_tolerance;
        while (first < i / kGateBlock &&
               distance(i, std::min<int64_t>(first * kGateBlock + kGateBlock - 1, i)) < threshold)
          ++first;
        EXPECT_EQ(result.first_key_block[head * query_blocks + m], first) << gate_name(gate) << ' ' << m;
      }
      for (int64_t n = 0; n < key_blocks; ++n) {
        int64_t last = -1;
        for (int64_t m = 0; m < query_blocks; ++m)
          if (result.first_key_block[head * query_blocks + m] <= n) last = m;
        EXPECT_EQ(result.last_query_block[head * key_blocks + n], last) << gate_name(gate) << ' ' << n;
      }
    }
  }
}

TEST_P(ForwardPruning, VisitsNoBlockBeforeACutWithoutATolerance) {
  constexpr int64_t kQueryBlocks = 9, kOffset = 200;
  Problem problem = random_problem(shape(1, 1100, 1100 + kOffset, 1, 2), dtype(), Gate::kOpen, 16);
  const std::vector<int64_t> cuts = {0, 128, 500, 900};  // of the second head; at 0 a cut cuts nothing off
  for (const int64_t cut : cuts) problem.log_forget[2 * cut + 1] = -INFINITY;
  const ForwardResult result = testing::run_forward(problem);
  for (int64_t m = 0; m < kQueryBlocks; ++m) {
    const int64_t cut = *(std::ranges::upper_bound(cuts, m * kGateBlock + kOffset) - 1);
    EXPECT_EQ(result.first_key_block[m], 0) << m;
    EXPECT_EQ(result.first_key_block[kQueryBlocks + m], cut / kGateBlock) << m;
  }
  EXPECT_EQ(result.visited_pairs, testing::boundary_pairs(problem.shape, result.first_key_block));
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, ForwardPruning, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, ForwardPruning, testing::window_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, ForwardPruning, testing::ampere_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfFloats, ForwardPruning, testing::float_instances(), testing::name_of_instance);

}  // namespace
}  // namespace lethe
