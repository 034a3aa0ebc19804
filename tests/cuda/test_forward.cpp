// The forward kernel against the reference, per head, over every dtype, head dim and feature.

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/cuda/against_reference.hpp"
#include "tests/cuda/attention.hpp"
#include "tests/cuda/every_kernel.hpp"

namespace lethe {
namespace {

using testing::ForwardResult;
using testing::slice;
using testing::worst_error;
using testing::WorstError;

void expect_agreement(const Problem& problem, const testing::PlanOptions& options = {}) {
  const ForwardResult result = testing::run_forward(problem, options);
  const WorstError worst = worst_error(problem, result);
  EXPECT_LE(worst.values, budget(problem.dtype));
  EXPECT_LE(worst.log_normalizer, 2e-4);
  if (result.repeated_tiles) {
    EXPECT_EQ(*result.repeated_tiles > 0, testing::has_strong_block(problem));
  }
  EXPECT_EQ(result.visited_pairs, testing::boundary_pairs(problem.shape, result.first_key_block));
}

std::string describe(const Shape& s, Dtype dtype, Gate gate) {
  return dtype_name(dtype) + " " + gate_name(gate) + " B" + std::to_string(s.batch) + " Tq" +
         std::to_string(s.query_length) + " Tk" + std::to_string(s.key_length) + " H" + std::to_string(s.heads) + "/" +
         std::to_string(s.query_heads) + " D" + std::to_string(s.key_dim);
}

class Forward : public testing::EveryKernel {};

TEST_P(Forward, EqualsTheReferenceAtEveryLengthAroundATile) {
  for (const int64_t length : {1, 2, 17, 63, 64, 65, 127, 128, 129, 255, 257, 640}) {
    SCOPED_TRACE(length);
    expect_agreement(random_problem(shape(2, length, length, 3, 3), dtype(), Gate::kInitial, length));
  }
}

TEST_P(Forward, TakesAnyScale) {
  for (const double scale : {-0.125, 0.0, 1e-30}) {  // the bias is divided by it
    Problem problem = random_problem(shape(1, 700, 700, 1, 1), dtype(), Gate::kInitial, 11);
    problem.scale = scale;
    SCOPED_TRACE(scale);
    expect_agreement(problem);
  }
}

TEST_P(Forward, EqualsTheReferenceForEveryGate) {
  for (const Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kSpiky, Gate::kZero, Gate::kCutting}) {
    const Problem problem = random_problem(shape(1, 900, 900, 2, 2), dtype(), gate, 5);
    SCOPED_TRACE(describe(problem.shape, dtype(), gate));
    expect_agreement(problem);
  }
}

TEST_P(Forward, AlignsFewerQueriesAtTheEnd) {
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{1, 300},
                                      {5, 128},
                                      {100, 700},
                                      {130, 131},
                                      {256, 640},
                                      {300, 333},
                                      {300, 363}}) {  // 363: a warpgroup's first row is a block's last
    SCOPED_TRACE(std::to_string(queries) + " of " + std::to_string(keys));
    expect_agreement(random_problem(shape(2, queries, keys, 2, 2), dtype(), Gate::kCutting, 7));
    expect_agreement(random_problem(shape(1, queries, keys, 1, 1), dtype(), Gate::kInitial, 8));
  }
}

TEST_P(Forward, SharesKeysAmongAGroupOfQueryHeads) {
  expect_agreement(random_problem(shape(2, 333, 400, 2, 6), dtype(), Gate::kInitial, 9));
}

TEST_P(Forward, NanGateAffectsOnlyQueriesThatSeeItsBlock) {
  constexpr int64_t kKeys = 1500, kHeads = 8, kHead = 3, kToken = 700, kBlock = kToken / kGateBlock * kGateBlock;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const int64_t queries : {kKeys, kKeys - 37})  // then a warpgroup's rows are in two blocks
    for (const auto& [gate, strong] : {std::pair{kNan, false}, {double{INFINITY}, false}, {kNan, true}}) {
      SCOPED_TRACE(std::to_string(queries) + " queries, log f = " + std::to_string(gate) + (strong ? ", strong" : ""));
      Problem problem = random_problem(shape(2, queries, kKeys, kHeads, kHeads), dtype(), Gate::kInitial, 13);
      if (strong)
        for (int64_t t = 3; t < kKeys; t += 5) problem.log_forget[t * kHeads + kHead] = -1000;
      const ForwardResult clean = testing::run_forward(problem);
      problem.log_forget[kToken * kHeads + kHead] = gate;  // of the first batch entry
      const ForwardResult result = testing::run_forward(problem);
      const auto check = [&](const std::vector<double>& found, const std::vector<double>& expected, int64_t width) {
        for (int64_t i = 0; i < int64_t(found.size()); ++i) {
          const int64_t head = i / width % kHeads, query = i / width / kHeads % queries,
                        position = query + kKeys - queries, batch = i / width / kHeads / queries;
          const bool see_it = batch == 0 && head == kHead && position >= kToken;
          const bool may_see_it = batch == 0 && head == kHead && position >= kBlock;
          // Not exactly: a tile with a query that sees it is computed again, in other steps. Millions of numbers: no macro for each
          const bool good = see_it ? std::isnan(found[i]) : may_see_it || std::fabs(found[i] - expected[i]) <= 0.02;
          if (!good) FAIL() << batch << ", " << head << ", " << query << ": " << expected[i] << ", found " << found[i];
        }
      };
      check(result.values, clean.values, problem.shape.value_dim);
      check(result.log_normalizer, clean.log_normalizer, 1);
    }
}

// NaN left in a CTA's ring of keys, by a tile's last blocks or by others, must not reach tiles that it computes afterwards.
TEST_P(Forward, KeepsNanGatesFromTilesThatDoNotSeeThem) {
  constexpr int64_t kTokens = 1500, kHeads = 24;
  Problem problem = random_problem(shape(2, kTokens, kTokens, kHeads, kHeads), dtype(), Gate::kInitial, 25);
  const ForwardResult clean = testing::run_forward(problem);
  for (const int64_t bad : {5, 1400}) {
    SCOPED_TRACE(bad);
    Problem with_bad = problem;
    for (int64_t head = 0; head < kHeads; ++head)  // of the first batch entry
      with_bad.log_forget[bad * kHeads + head] = std::numeric_limits<double>::quiet_NaN();
    const ForwardResult result = testing::run_forward(with_bad);
    const int64_t dim = problem.shape.value_dim;
    for (int64_t i = 0; i < int64_t(clean.values.size()); ++i) {
      const int64_t token = i / dim / kHeads % kTokens, batch = i / dim / kHeads / kTokens;
      if (batch == 0 && token >= bad / kGateBlock * kGateBlock) continue;
      if (!(std::fabs(result.values[i] - clean.values[i]) <= 0.02))  // a million numbers: no macro for each
        FAIL() << "batch " << batch << ", token " << token << ": expected " << clean.values[i] << ", found "
               << result.values[i];
    }
  }
}

TEST_P(Forward, HoldsForManyTilesACta) {
  expect_agreement(random_problem(shape(3, 1500, 1500, 8, 8), dtype(), Gate::kOpen, 10));
}

TEST_P(Forward, FollowsLogitsThatGrow) {
  Problem problem = random_problem(shape(1, 700, 700, 1, 1), dtype(), Gate::kOpen, 11);
  problem.scale *= 8;  // exponentials of many blocks are far above those of the row's first
  const ForwardResult result = testing::run_forward(problem);
  const WorstError worst = worst_error(problem, result);
  if (result.repeated_tiles && dtype() == Dtype::kBFloat16) {
    EXPECT_EQ(*result.repeated_tiles, 0);  // float16 may not hold weights so large
  }
  EXPECT_LE(worst.values, budget(dtype()));
  EXPECT_LE(worst.log_normalizer, 1e-3);
}

// Each query's own logit is 13 nats above all others, which have a few per cent of the weight between them, and a mean of their values that is not 0:
// float16 must not lose them.
TEST_P(Forward, CountsManySmallWeightsBesideALargeOne) {
  constexpr int64_t kQueries = 256, kKeys = 4096;
  Problem problem = random_problem(shape(1, kQueries, kKeys, 1, 1), dtype(), Gate::kZero, 23);
  const int64_t dim = problem.shape.key_dim;
  for (int64_t token = 0; token < kKeys; ++token) {
    double square = 0;
    for (int64_t i = 0; i < dim; ++i) square += problem.key[token * dim + i] * problem.key[token * dim + i];
    const double factor = std::sqrt(13 / (problem.scale * square));
    for (int64_t i = 0; i < dim; ++i) {
      double& key = problem.key[token * dim + i];
      double& value = problem.value[token * dim + i];
      key = round_to(dtype(), key * factor);
      value = round_to(dtype(), value + 1);
      if (token >= kKeys - kQueries) problem.query[(token - kKeys + kQueries) * dim + i] = key;
    }
  }
  expect_agreement(problem);
}

TEST_P(Forward, RepeatsTilesWhoseExponentialsOverflow) {
  Problem problem = random_problem(shape(1, 700, 700, 2, 2), dtype(), Gate::kOpen, 11);
  problem.scale *= 100;
  const ForwardResult result = testing::run_forward(problem);
  const WorstError worst = worst_error(problem, result);
  if (result.repeated_tiles) {
    EXPECT_GT(*result.repeated_tiles, 0);
  }
  EXPECT_LE(worst.values, budget(dtype()));
  EXPECT_LE(worst.log_normalizer, 1e-2);
  EXPECT_EQ(result.visited_pairs, testing::boundary_pairs(problem.shape, result.first_key_block));
}

TEST_P(Forward, RepeatsATileOfWhichOneRowOverflows) {
  for (const int64_t row : {592, 600}) {  // the first and the second row of a thread
    SCOPED_TRACE(row);
    Problem problem = random_problem(shape(1, 700, 700, 1, 1), dtype(), Gate::kOpen, 26);
    const int64_t dim = problem.shape.key_dim;
    double square = 0;
    for (int64_t i = 0; i < dim; ++i) square += problem.key[5 * dim + i] * problem.key[5 * dim + i];
    for (int64_t i = 0; i < dim; ++i)
      problem.query[row * dim + i] = round_to(dtype(), problem.key[5 * dim + i] * 250 / (problem.scale * square));
    const ForwardResult result = testing::run_forward(problem);
    if (result.repeated_tiles) {
      EXPECT_EQ(*result.repeated_tiles, 1);
    }
    EXPECT_LE(worst_error(problem, result).values, budget(dtype()));
  }
}

TEST_P(Forward, RepeatsNoTileWhoseGateUnderflowsWithinAWarp) {  // each row has an m of its own
  Problem problem = random_problem(shape(1, 700, 700, 2, 2), dtype(), Gate::kOpen, 18);
  for (int64_t t = 0; t < 700; ++t)
    if (t % kGateBlock < 40) problem.log_forget[2 * t] = round_to(Dtype::kFloat32, -7.9);  // of head 0
  ASSERT_FALSE(testing::has_strong_block(problem));
  expect_agreement(problem);
}

TEST_P(Forward, ResolvesPairsNearStrongGates) {
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{700, 700}, {603, 640}, {140, 700}})
    for (const auto& [name, problem] :
         testing::with_strong_gates(random_problem(shape(1, queries, keys, 1, 2), dtype(), Gate::kInitial, 19))) {
      SCOPED_TRACE(name + ", " + std::to_string(queries) + " of " + std::to_string(keys));
      const bool pruned = queries == 603;
      ASSERT_TRUE(testing::has_strong_block(problem));
      expect_agreement(problem, {.log_pruning_tolerance = pruned ? -20 : -INFINITY});
    }
}

TEST_P(Forward, ResolvesPairsWhereGatesAreAlmostStrong) {
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{700, 700}, {603, 640}})  // tiles of two and three blocks
    for (const auto& problem : testing::with_almost_strong_gates(
             random_problem(shape(1, queries, keys, 1, 2), dtype(), Gate::kInitial, 19))) {
      const ForwardResult result = testing::run_forward(problem);
      const WorstError worst = worst_error(problem, result);
      if (result.repeated_tiles) {
        EXPECT_EQ(*result.repeated_tiles, 0);
      }
      EXPECT_LE(worst.values,
                dtype() == Dtype::kFloat32 ? 1.5e-5 : budget(dtype()));  // of floats as large as those sums
      EXPECT_LE(worst.log_normalizer, 4e-4);                             // of sums of up to 1536
    }
}

TEST_P(Forward, ResolvesPairsNearStrongGatesInMoreTilesThanCtas) {
  Problem problem = random_problem(shape(3, 1500, 1500, 8, 8), dtype(), Gate::kOpen, 10);
  for (size_t i = 0; i < problem.log_forget.size(); ++i)
    if (i / 8 % 5 == 3) problem.log_forget[i] = -9000;
  ASSERT_TRUE(testing::has_strong_block(problem));
  expect_agreement(problem);
}

TEST_P(Forward, ResolvesPairsNearStrongGatesWithAnyScale) {
  for (const double scale : {-0.125, 0.0, 1e-30}) {
    SCOPED_TRACE(scale);
    Problem problem = random_problem(shape(1, 300, 300, 1, 1), dtype(), Gate::kInitial, 11);
    for (int64_t t = 0; t < 300; t += 3) problem.log_forget[t] = -1000;
    problem.scale = scale;
    ASSERT_TRUE(testing::has_strong_block(problem));
    expect_agreement(problem);
  }
}

TEST_P(Forward, ResolvesPairsNearStrongGatesOfAFewTokens) {
  const auto problems =
      testing::with_strong_gates(random_problem(shape(1, 150, 200, 1, 2), dtype(), Gate::kInitial, 21));
  ASSERT_TRUE(testing::has_strong_block(problems.back().second));
  expect_agreement(problems.back().second);
}

TEST_P(Forward, ResolvesPairsNearStrongGatesAndCuts) {
  for (auto [name, problem] :
       testing::with_strong_gates(random_problem(shape(1, 700, 740, 1, 2), dtype(), Gate::kOpen, 20))) {
    SCOPED_TRACE(name);
    for (const int64_t cut : {1, 64, 65, 300, 511, 650}) problem.log_forget[2 * cut + 1] = -INFINITY;
    ASSERT_TRUE(testing::has_strong_block(problem));
    expect_agreement(problem);
  }
}

TEST_P(Forward, KeepsToTheCutsWhenEarlierLogitsAreHuge) {
  Problem problem = random_problem(shape(1, 500, 500, 1, 1), dtype(), Gate::kCutting, 12);
  for (int64_t i = 0; i < 200 * problem.shape.key_dim; ++i) problem.key[i] = round_to(dtype(), problem.key[i] * 30);
  const WorstError worst = worst_error(problem, testing::run_forward(problem));
  EXPECT_LE(worst.values, budget(dtype()));
}

TEST_P(Forward, KeepsToOneCutAnywhereInABlock) {
  for (const int64_t offset : {0, 100})
    for (const int64_t cut : {1, 127, 128, 129, 255, 256, 384, 639}) {
      SCOPED_TRACE(cut);
      Problem problem = random_problem(shape(1, 640 - offset, 640, 1, 1), dtype(), Gate::kOpen, 22);
      problem.log_forget[cut] = -INFINITY;
      expect_agreement(problem);
    }
}

TEST_P(Forward, RefusesWhatAWrongGateWouldGive) {
  Problem problem = random_problem(shape(1, 512, 512, 1, 1), dtype(), Gate::kInitial, 16);
  const ForwardResult result = testing::run_forward(problem);
  // off by one token
  std::rotate(problem.log_forget.begin(), problem.log_forget.begin() + 1, problem.log_forget.end());
  EXPECT_GT(worst_error(problem, result).values, 3 * budget(dtype()));
  std::fill(problem.log_forget.begin(), problem.log_forget.end(), 0.0);
  EXPECT_GT(worst_error(problem, result).values, 3 * budget(dtype()));
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, Forward, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, Forward, testing::window_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfShortRows, Forward, testing::short_rows(Dtype::kBFloat16), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfShorterRows, Forward, testing::short_rows(Dtype::kFloat16), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, Forward, testing::ampere_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfFloats, Forward, testing::float_instances(), testing::name_of_instance);

class ForwardOfShortRows : public testing::EveryKernel {};

TEST_P(ForwardOfShortRows, EqualsTheReference) {
  expect_agreement(random_problem(shape(2, 190, 433, 2, 4), dtype(), Gate::kInitial, 41),
                   {.log_pruning_tolerance = -10});
  const auto strong = testing::with_strong_gates(random_problem(shape(1, 300, 300, 1, 2), dtype(), Gate::kCutting, 42));
  expect_agreement(strong.back().second);
}

INSTANTIATE_TEST_SUITE_P(EveryHeadDim, ForwardOfShortRows, testing::other_short_rows(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(AboveTheSecondInstance, ForwardOfShortRows, testing::wide_short_rows(),
                         testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, ForwardOfShortRows, testing::ampere_short_rows(), testing::name_of_instance);

class ForwardPrecision : public testing::EveryKernel {};

/// A long sequence on sampled rows: the accuracy that the bias alone allows.
TEST_P(ForwardPrecision, KeepsTheBiasExactAtALengthOf262144) {
  // Tokens of a prime period, but for their gates; before that many of them a query has no weight in double.
  constexpr int64_t kLength = 262144, kPeriod = 8191;
  Problem problem = random_problem(shape(1, kPeriod, kPeriod, 1, 1), dtype(), Gate::kOpen, 17);
  problem.shape = shape(1, kLength, kLength, 1, 1);
  const int64_t dim = problem.shape.value_dim;
  for (auto* tensor : {&problem.query, &problem.key, &problem.value}) {
    tensor->resize(kLength * dim);
    for (int64_t i = kPeriod * dim; i < kLength * dim; ++i) (*tensor)[i] = (*tensor)[i - kPeriod * dim];
  }
  problem.log_forget = random_problem({1, kLength, kLength, 1, 1, 1, 1}, dtype(), Gate::kOpen, 17).log_forget;
  for (auto& gate : problem.log_forget) gate = round_to(Dtype::kFloat32, gate * 1e4);  // mean −1
  const ForwardResult result = testing::run_forward(problem);
  for (const int64_t row :
       {int64_t{0}, int64_t{1000}, int64_t{131071}, int64_t{131072}, int64_t{200007}, kLength - 1}) {
    const int64_t keys = std::min(row + 1, kPeriod), first = row + 1 - keys;
    const auto tokens = [&](const std::vector<double>& tensor, int64_t from, int64_t count, int64_t width) {
      return Matrix<double>(Eigen::Map<const Matrix<double>>(tensor.data() + from * width, count, width));
    };
    const Head head{tokens(problem.query, row, 1, dim), tokens(problem.key, first, keys, dim),
                    tokens(problem.value, first, keys, dim), tokens(problem.log_forget, first, keys, 1).col(0),
                    problem.scale};
    const Output expected = reference::forgetting_attention::one_query(head, 0);
    EXPECT_LE(std::fabs(result.log_normalizer[row] - expected.log_normalizer[0]), 5e-4) << row;
    const std::vector<double> values(result.values.begin() + row * dim, result.values.begin() + (row + 1) * dim);
    EXPECT_LE(compare(values, {expected.values.data(), values.size()}, 1).error, budget(dtype())) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKernel, ForwardPrecision, testing::hopper_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfWindows, ForwardPrecision, testing::window_instances(), testing::name_of_instance);
INSTANTIATE_TEST_SUITE_P(OfAmpere, ForwardPrecision, testing::ampere_instances(), testing::name_of_instance);

TEST(Unsupported, NamesTheReason) {
  const Shape fine{1, 8, 8, 1, 1, 64, 64};
  EXPECT_EQ(unsupported_by_hopper(fine, Dtype::kBFloat16, 90), "");
  EXPECT_EQ(unsupported_by_ampere(fine, Dtype::kBFloat16, 90), "");
  EXPECT_EQ(unsupported_by_ampere({1, 8, 8, 1, 1, 20, 256}, Dtype::kFloat16, 80), "");
  EXPECT_EQ(unsupported_by_ampere(fine, Dtype::kBFloat16, 75),
            "device: expected compute capability 8.0 or above, found 7.5");
  EXPECT_EQ(unsupported_by_ampere({1, 8, 8, 1, 1, 128, 128}, Dtype::kFloat32, 80), "");
  EXPECT_EQ(unsupported_by_ampere({1, 8, 8, 1, 1, 136, 64}, Dtype::kFloat32, 80),
            "head dim: expected 1 to 128, found 136");
  EXPECT_EQ(unsupported_by_ampere(fine, Dtype::kFloat64, 80),
            "dtype: expected float32, bfloat16 or float16, found float64");
  EXPECT_EQ(unsupported_by_ampere({1, 8, 8, 1, 1, 264, 64}, Dtype::kFloat16, 80),
            "head dim: expected 1 to 256, found 264");
  EXPECT_EQ(unsupported_by_ampere({1, 8, 8, 1, 1, 64, 264}, Dtype::kFloat16, 80),
            "value dim: expected 1 to 256, found 264");
  EXPECT_EQ(unsupported_by_hopper(fine, Dtype::kBFloat16, 80), "device: expected compute capability 9.0, found 8.0");
  EXPECT_EQ(unsupported_by_hopper(fine, Dtype::kFloat32, 90), "dtype: expected bfloat16 or float16, found float32");
  EXPECT_EQ(unsupported_by_hopper({1, 8, 8, 1, 1, 1, 256}, Dtype::kFloat16, 90), "");
  EXPECT_EQ(unsupported_by_hopper({1, 8, 8, 1, 1, 257, 64}, Dtype::kFloat16, 90),
            "head dim: expected 1 to 256, found 257");
  EXPECT_EQ(unsupported_by_hopper({1, 8, 8, 1, 1, 64, 264}, Dtype::kFloat16, 90),
            "value dim: expected 1 to 256, found 264");
  const std::string too_large =
      "size: expected a length up to 2^30, batch and heads below 2^16 and fewer than 2^31 tiles, found more";
  constexpr int64_t kLongest = int64_t{1} << 30;
  for (const Shape& s : {Shape{1, 8, kLongest + 1, 1, 1, 64, 64}, Shape{65536, 8, 8, 1, 1, 64, 64},
                         Shape{1, 8, 8, 1, 65536, 64, 64}, Shape{1, 8, kLongest, 1, 256, 64, 64}})
    EXPECT_EQ(unsupported_by_hopper(s, Dtype::kBFloat16, 90), too_large);
  for (const Shape& s :
       {Shape{1, 8, kLongest, 1, 255, 64, 64}, Shape{65535, 8, 8, 1, 1, 64, 64}, Shape{1, 8, 8, 1, 65535, 64, 64}})
    EXPECT_EQ(unsupported_by_hopper(s, Dtype::kBFloat16, 90), "");
}

}  // namespace
}  // namespace lethe
