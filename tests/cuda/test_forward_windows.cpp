// The forward kernel where queries see a part of the past: within windows smaller than the sequence, and in packed sequences.

#include <algorithm>
#include <cmath>

#include "tests/cuda/windows.hpp"

namespace lethe {
namespace {

using testing::ForwardResult;
using testing::Sight;
using testing::WindowUnderTest;
using testing::WorstError;

ForwardResult expect_agreement_within(const Problem& problem, const Sight& sight) {
  const WindowUnderTest window(sight);
  const ForwardResult result = testing::run_forward(problem);
  const WorstError worst = testing::worst_error(problem, result, sight);
  EXPECT_LE(worst.values, budget(problem.dtype));
  EXPECT_LE(worst.log_normalizer, 2e-4);
  return result;
}

void expect_agreement_within(const std::vector<testing::Call>& calls) {
  for (const testing::Call& call : calls) {
    SCOPED_TRACE(call.name);
    expect_agreement_within(call.problem, call.sight);
  }
}

class ForwardWindows : public testing::EveryKernel {};

TEST_P(ForwardWindows, HideAllButTheirKeysOfAFewTokens) {
  expect_agreement_within(testing::calls_of_a_few_tokens(dtype(), [&](auto... sizes) { return shape(sizes...); }));
}

// Around the sizes of blocks and tiles. Visited are the window's pairs, and those of a block at each edge of a tile.
TEST_P(ForwardWindows, HideAllButTheirKeysAtEveryLength) {
  constexpr int64_t kQueries = 500, kKeys = 600;
  const Problem open = random_problem(shape(1, kQueries, kKeys, 1, 2), dtype(), Gate::kOpen, 53),
                initial = random_problem(shape(1, kQueries, kKeys, 1, 2), dtype(), Gate::kInitial, 54);
  for (const int64_t window : {1, 2, 17, 63, 64, 65, 127, 128, 129, 200, 500, 599}) {
    SCOPED_TRACE(window);
    int64_t seen = 0;
    for (int64_t i = kKeys - kQueries; i < kKeys; ++i) seen += std::min(i + 1, window);
    for (const int64_t pairs : expect_agreement_within(open, {.window = window}).visited_pairs) {
      EXPECT_GE(pairs, seen);
      EXPECT_LE(pairs, seen + 256 * kQueries);
    }
    expect_agreement_within(initial, {.window = window});
  }
}

// The first query is a block's last key, or its tile's queries are in two blocks; cuts in the window and before it.
TEST_P(ForwardWindows, MoveWithQueriesWhereverTheseBegin) {
  for (const int64_t before : {1, 31, 63, 100, 127})
    for (const int64_t window : {64, 100, 200}) {
      SCOPED_TRACE(std::to_string(before) + " keys before, window " + std::to_string(window));
      expect_agreement_within(random_problem(shape(1, 300, 300 + before, 1, 1), dtype(), Gate::kCutting, before),
                              {.window = window});
    }
}

TEST_P(ForwardWindows, RestartInPackedSequences) {
  const Problem problem = random_problem(shape(1, 700, 700, 2, 2), dtype(), Gate::kOpen, 55);
  for (const Sight& sight : {Sight{.cu_seqlens = {0, 1, 64, 64, 193, 400, 700}},
                             {.window = 100, .cu_seqlens = {0, 90, 192, 300, 700}},
                             {.window = 20, .cu_seqlens = {0, 7, 30, 128, 700}}}) {
    SCOPED_TRACE(sight.window);
    expect_agreement_within(testing::packed(problem, sight), sight);
  }
}

TEST_P(ForwardWindows, ResolvePairsNearStrongGates) {
  for (const auto& [name, problem] :
       testing::with_strong_gates(random_problem(shape(1, 503, 540, 1, 2), dtype(), Gate::kInitial, 56)))
    for (const int64_t window : {33, 150}) {
      SCOPED_TRACE(name + ", window " + std::to_string(window));
      expect_agreement_within(problem, {.window = window});
    }
}

// Keys that no query may see are NaN once the boundary is found.
TEST_P(ForwardWindows, ReadNothingOfWhatTheyHide) {
  constexpr int64_t kQueries = 200, kKeys = 1100, kWindow = 300, kHidden = kKeys - kQueries - kWindow + 1;
  const Problem problem = random_problem(shape(2, kQueries, kKeys, 2, 4), dtype(), Gate::kOpen, 57);
  const WindowUnderTest window({.window = kWindow});
  const ForwardResult clean = testing::run_forward(problem);
  const int64_t first = *std::ranges::min_element(clean.first_key_block);
  EXPECT_EQ(first, kHidden / kGateBlock);
  const ForwardResult poisoned = testing::run_forward(problem, {.poisoned_keys = first * kGateBlock});
  EXPECT_EQ(poisoned.values, clean.values);
  EXPECT_EQ(poisoned.log_normalizer, clean.log_normalizer);
}

TEST_P(ForwardWindows, AreNotThatOfAKeyMoreOrFewer) {
  const Problem problem = random_problem(shape(1, 300, 300, 1, 1), dtype(), Gate::kOpen, 58);
  const ForwardResult result = expect_agreement_within(problem, {.window = 20});
  for (const int64_t wrong : {19, 21})
    EXPECT_GT(testing::worst_error(problem, result, {.window = wrong}).values, 3 * budget(dtype()));
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, ForwardWindows, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfShortRows, ForwardWindows, testing::short_rows(Dtype::kBFloat16), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, ForwardWindows, testing::ampere_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfFloats, ForwardWindows, testing::float_instances(), testing::name_of_instance);

class ForwardWindowsOfShortRows : public testing::EveryKernel {};

TEST_P(ForwardWindowsOfShortRows, HideAllButTheirKeysOfAFewTokens) {
  expect_agreement_within(testing::calls_of_a_few_tokens(dtype(), [&](auto... sizes) { return shape(sizes...); }));
}

INSTANTIATE_TEST_SUITE_P(OfAmpere, ForwardWindowsOfShortRows, testing::ampere_short_rows(), testing::name_of_instance);

}  // namespace
}  // namespace lethe
