// The backward kernels where queries see a part of the past: within windows smaller than the sequence, and in packed sequences.

#include <algorithm>
#include <cmath>

#include "tests/cuda/windows.hpp"

namespace lethe {
namespace {

using testing::BackwardResult;
using testing::expect_same_gradients;
using testing::grad_values_of;
using testing::of_both_sums;
using testing::Shares;
using testing::Sight;
using testing::WindowUnderTest;

// What a row of dS sums to, of rounding alone, is taken from all of its past by the gate, not from its window: of windows much smaller than the past,
// with open gates, the gate's gradient has up to 1.1 budgets of error by formulas in double with 16-bit P, and 3.1 with 16-bit sums.
constexpr double kOfFloatSums = 3, kOf16BitSums = 8;

// In these orders of dQ's sums: the fixed one, any.
void expect_agreement_within(const Problem& problem, const Sight& sight,
                             std::initializer_list<bool> deterministic = {true, false}) {
  const WindowUnderTest window(sight);
  const std::vector<double> grad = grad_values_of(problem, 99);
  std::vector<BackwardResult> results;
  for (const bool fixed : deterministic)
    for (BackwardResult& result : of_both_sums(problem, grad, {}, fixed)) results.push_back(std::move(result));
  const std::vector<Shares> shares = testing::shares_of(problem, grad, results, sight);
  const std::vector<bool> kinds = testing::kinds_of_sums(problem.shape);
  for (size_t which = 0; which < shares.size(); ++which) {
    const bool float_sums = kinds[which % kinds.size()], hides = sight.window < problem.shape.key_length;
    for (int i = 0; i < 4; ++i)
      EXPECT_LE(shares[which][i], i < 3 || !hides ? 1
                                  : float_sums    ? kOfFloatSums
                                                  : kOf16BitSums)
          << testing::kGradientNames[i] << (float_sums ? ", float sums" : ", sums of 16 bits");
  }
}

// In one of the orders, by turns.
void expect_agreement_within(const std::vector<testing::Call>& calls) {
  bool fixed = false;
  for (const testing::Call& call : calls) {
    SCOPED_TRACE(call.name);
    expect_agreement_within(call.problem, call.sight, {fixed = !fixed});
  }
}

class BackwardWindows : public testing::EveryKernel {};

TEST_P(BackwardWindows, HideAllButTheirKeysOfAFewTokens) {
  expect_agreement_within(testing::calls_of_a_few_tokens(dtype(), [&](auto... sizes) { return shape(sizes...); }));
}

// Around the sizes of blocks and tiles.
TEST_P(BackwardWindows, HideAllButTheirKeysAtEveryLength) {
  const Problem open = random_problem(shape(1, 500, 600, 1, 2), dtype(), Gate::kOpen, 53),
                initial = random_problem(shape(1, 500, 600, 1, 2), dtype(), Gate::kInitial, 54);
  for (const int64_t window : {64, 65, 127, 128, 129, 200, 500, 599}) {
    SCOPED_TRACE(window);
    expect_agreement_within(open, {.window = window});
    expect_agreement_within(initial, {.window = window}, {false});
  }
}

TEST_P(BackwardWindows, MoveWithQueriesWhereverTheseBegin) {
  for (const int64_t before : {1, 31, 63, 100, 127})
    for (const int64_t window : {64, 100, 200}) {
      SCOPED_TRACE(std::to_string(before) + " keys before, window " + std::to_string(window));
      expect_agreement_within(random_problem(shape(1, 300, 300 + before, 1, 1), dtype(), Gate::kCutting, before),
                              {.window = window}, {false});
    }
}

TEST_P(BackwardWindows, RestartInPackedSequences) {
  const Problem problem = random_problem(shape(1, 700, 700, 2, 2), dtype(), Gate::kOpen, 55);
  for (const Sight& sight :
       {Sight{.cu_seqlens = {0, 1, 64, 64, 193, 400, 700}}, {.window = 100, .cu_seqlens = {0, 90, 192, 300, 700}}}) {
    SCOPED_TRACE(sight.window);
    expect_agreement_within(testing::packed(problem, sight), sight);
  }
}

TEST_P(BackwardWindows, ResolvePairsNearStrongGates) {
  for (const auto& [name, problem] :
       testing::with_strong_gates(random_problem(shape(1, 413, 540, 1, 2), dtype(), Gate::kInitial, 56))) {
    SCOPED_TRACE(name);
    expect_agreement_within(problem, {.window = 150}, {false});
  }
}

// Keys that no query may see are NaN once the boundary is found.
TEST_P(BackwardWindows, ReadNothingOfWhatTheyHide) {
  constexpr int64_t kQueries = 200, kKeys = 1100, kWindow = 300, kHidden = kKeys - kQueries - kWindow + 1;
  const Problem problem = random_problem(shape(2, kQueries, kKeys, 2, 4), dtype(), Gate::kOpen, 57);
  const std::vector<double> grad = grad_values_of(problem, 99);
  const WindowUnderTest window({.window = kWindow});
  const std::vector<BackwardResult> clean = of_both_sums(problem, grad, {}, true),
                                    poisoned = of_both_sums(problem, grad,
                                                            {.poisoned_keys = kHidden / kGateBlock * kGateBlock}, true);
  for (size_t i = 0; i < clean.size(); ++i) {
    expect_same_gradients(poisoned[i], clean[i]);
    const int64_t width = problem.shape.heads * dim();
    for (int64_t at = 0; at < int64_t(clean[i].key.size()); ++at) {
      const bool hidden = at / width % kKeys < kHidden;
      if (hidden && (clean[i].key[at] != 0 || clean[i].value[at] != 0))
        FAIL() << "expected 0 for key " << at / width % kKeys;
    }
  }
}

// More tiles of keys than CTAs, the last of each head apart: a window's own order. The kernels for every GPU have others for the fixed order.
TEST_P(BackwardWindows, HaveTheSameBitsInManyTiles) {
  constexpr int64_t kBatch = 12, kHeads = 4;
  const Problem problem = random_problem(shape(kBatch, 700, 700, kHeads, kHeads), dtype(), Gate::kOpen, 59);
  const std::vector<double> grad = grad_values_of(problem, 99);
  const WindowUnderTest window({.window = 200});
  const std::vector<BackwardResult> in_order = of_both_sums(problem, grad, {}, true),
                                    again = of_both_sums(problem, grad, {}, true), in_any = of_both_sums(problem, grad);
  const bool same_kernel = testing::family_under_test == testing::Family::kHopper;
  const double allowed = (same_kernel ? 1 : 2) * budget(dtype());
  for (size_t i = 0; i < in_order.size(); ++i) {
    expect_same_gradients(again[i], in_order[i]);
    if (same_kernel) {
      EXPECT_EQ(in_any[i].key, in_order[i].key);
      EXPECT_EQ(in_any[i].value, in_order[i].value);
    }
    EXPECT_LE(compare(in_any[i].key, in_order[i].key, 1).error, allowed);
    EXPECT_LE(compare(in_any[i].value, in_order[i].value, 1).error, allowed);
    EXPECT_LE(compare(in_any[i].query, in_order[i].query, 1).error, allowed);
    EXPECT_LE(compare(in_any[i].log_forget, in_order[i].log_forget, 1).error, kOfFloatSums * allowed);
  }
}

TEST_P(BackwardWindows, AreNotThatOfAKeyMoreOrFewer) {
  const Problem problem = random_problem(shape(1, 300, 300, 1, 1), dtype(), Gate::kOpen, 58);
  const std::vector<double> grad = grad_values_of(problem, 99);
  const WindowUnderTest window({.window = 64});
  const std::vector<BackwardResult> results = of_both_sums(problem, grad);
  for (const int64_t wrong : {63, 65})
    for (const double share : testing::worst_shares(problem, grad, results, {.window = wrong})) EXPECT_GT(share, 3);
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, BackwardWindows, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfShortRows, BackwardWindows, testing::short_rows(Dtype::kBFloat16),
                         testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, BackwardWindows, testing::ampere_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfLessShared, BackwardWindows, testing::ampere_instances_of_less(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfFloats, BackwardWindows, testing::float_instances(), testing::name_of_instance);

class BackwardWindowsOfShortRows : public testing::EveryKernel {};

TEST_P(BackwardWindowsOfShortRows, HideAllButTheirKeysOfAFewTokens) {
  expect_agreement_within(testing::calls_of_a_few_tokens(dtype(), [&](auto... sizes) { return shape(sizes...); }));
}

INSTANTIATE_TEST_SUITE_P(OfAmpere, BackwardWindowsOfShortRows, testing::ampere_short_rows(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfLessShared, BackwardWindowsOfShortRows,
                         testing::ampere_short_rows(testing::Family::kAmpereOfLess), testing::name_of_instance);

}  // namespace
}  // namespace lethe
