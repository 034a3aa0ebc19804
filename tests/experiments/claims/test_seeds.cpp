// Statements on rows with seeds: paired differences, pooled noise, the text's noise, and rows that a scale doesn't train.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "experiments/claims/seeds.hpp"

namespace lethe {
namespace {

const auto kPositive = Expectation::positive();

TEST(Measurements, PairRowsBySeed) {
  Measurements losses;
  for (const uint64_t seed : {0, 1, 2}) {
    losses.add("a", seed, 10.0 * static_cast<double>(seed));
    losses.add("b", seed, 10.0 * static_cast<double>(seed) + 1 + 0.1 * static_cast<double>(seed));
  }
  losses.add("b", 7, 1000);  // a seed that a lacks
  const Comparison found = losses.compare("b is above a", {{"b", 1}, {"a", -1}}, kPositive);
  EXPECT_NEAR(found.measured, 1.1, 1e-12);
  EXPECT_NEAR(found.band, student_t(2) * 0.1 / std::sqrt(3.0), 1e-12) << "what a seed does to both cancels";
  EXPECT_EQ(found.verdict(), Verdict::kTrendReproduced);
}

TEST(Measurements, PoolWhatRowsAndSeedsLeaveWhereFewAreShared) {
  Measurements losses;
  // Rows at 1, 2 and 4, plus 0, 10 and 20 by seed; a's first value is 0.9 too high.
  for (const uint64_t seed : {0, 1, 2}) {
    const double of_seed = 10.0 * static_cast<double>(seed);
    losses.add("a", seed, 1 + of_seed + (seed == 0 ? 0.9 : 0));
    losses.add("b", seed, 2 + of_seed);
    losses.add("c", seed, 4 + of_seed);
  }
  losses.add("single", 0, 7);
  // residuals 0.4, −0.2, −0.2 of a and −0.2, 0.1, 0.1 of b and c: squares 0.36 over 4 degrees
  const Comparison found = losses.compare("", {{"single", 1}, {"b", -1}}, kPositive);
  EXPECT_NEAR(found.measured, 5, 1e-12) << "against the same seed of b";
  EXPECT_NEAR(found.band, student_t(4) * 0.3 * std::sqrt(2.0), 1e-12);
}

TEST(Measurements, AddTheNoiseOfTheText) {
  Measurements losses;
  for (const uint64_t seed : {0, 1, 2}) {
    losses.add("a", seed, 2, {1, 2, 3});
    losses.add("b", seed, 3, {2, 4, 3});
  }
  const Comparison found = losses.compare("", {{"b", 1}, {"a", -1}}, kPositive);  // 1, 2, 0 on the three sequences
  EXPECT_NEAR(found.band, band_of_mean({1, 2, 0}), 1e-12);
  losses.add("c", 0, 4);  // without a text
  losses.add("c", 1, 4.5), losses.add("c", 2, 5);
  EXPECT_NEAR(losses.compare("", {{"c", 1}, {"a", -1}}, kPositive).band, band_of_mean({2, 2.5, 3}), 1e-12);
}

TEST(Measurements, AreOutOfReachWhereARowIsNotTrained) {
  Measurements losses;
  losses.add("a", 0, 1);
  const Comparison found = losses.compare("", {{"a", 1}, {"b", -1}}, kPositive);
  EXPECT_EQ(found.verdict(), Verdict::kOutOfReach);
  EXPECT_EQ(found.out_of_reach, "this scale does not train b");
  EXPECT_EQ(found.absent_row, "b");
  losses.add("b", 1, 1);
  EXPECT_EQ(losses.compare("", {{"a", 1}, {"b", -1}}, kPositive).verdict(), Verdict::kInconclusive) << "no shared seed";
}

TEST(Measurements, SayNothingWithoutAnyNoiseEstimateOrWithoutALoss) {
  Measurements losses;
  losses.add("a", 0, 1), losses.add("b", 0, 2);
  EXPECT_EQ(losses.compare("", {{"b", 1}, {"a", -1}}, kPositive).verdict(), Verdict::kInconclusive);
  for (const uint64_t seed : {1, 2}) losses.add("a", seed, 1), losses.add("b", seed, std::nan(""));
  EXPECT_EQ(losses.compare("", {{"b", 1}, {"a", -1}}, kPositive).verdict(), Verdict::kInconclusive);
}

TEST(Measurements, SayHowManySeedsWouldDecide) {
  Measurements losses;
  for (const uint64_t seed : {0, 1, 2}) {
    losses.add("a", seed, 0), losses.add("b", seed, 1 + static_cast<double>(seed) - 1.0);  // mean 1, scatter 1
    losses.add("far", seed, 100 + static_cast<double>(seed));
  }
  const Comparison found = losses.compare("", {{"b", 1}, {"a", -1}}, kPositive);
  size_t enough = 3;
  while (student_t(static_cast<int>(enough) - 1) / std::sqrt(static_cast<double>(enough)) >= 1) ++enough;
  EXPECT_EQ(found.would_decide, std::to_string(enough) + " seeds a row, 3 are here");
  EXPECT_EQ(found.lacks(), "would be decided by " + found.would_decide);
  EXPECT_EQ(losses.compare("", {{"far", 1}, {"a", -1}}, kPositive).would_decide, "") << "it is decided";
  EXPECT_EQ(losses.compare("", {{"b", 1}, {"a", -1}}, {.low = 1 - 1e-6, .high = 1 + 1e-6}).would_decide,
            "more than 1000 seeds a row");

  EXPECT_EQ(losses.compare("", {{"a", 1}}, kPositive).would_decide, "") << "its mean is the bound itself";

  Comparison against = found;
  against.measured = -found.measured;
  EXPECT_NE(against.lacks(), "");
  against.no_refutation = "another precision than the paper's";
  EXPECT_EQ(against.lacks(), "") << "it would stay open";

  Comparison closed = found;
  closed.open = "its runs don't differ";
  EXPECT_EQ(closed.lacks(), "") << "no seed would decide it";
  EXPECT_FALSE(nlohmann::json(closed).contains("would_decide"));
  EXPECT_EQ(nlohmann::json(found).at("would_decide"), found.would_decide);
}

TEST(Measurements, SayHowMuchTextWouldDecideWhereNoNumberOfSeedsDoes) {
  Measurements losses;
  for (const uint64_t seed : {0, 1, 2}) {
    losses.add("a", seed, 0, {0, 0, 0});
    losses.add("b", seed, 1, {3, -3, 3});
  }
  const double of_text = band_of_mean({3, -3, 3});
  int times = 1;
  while (of_text / std::sqrt(times) >= 1) ++times;
  EXPECT_EQ(losses.compare("", {{"b", 1}, {"a", -1}}, kPositive).would_decide,
            std::to_string(times) + " times the text");
  for (const uint64_t seed : {0, 1, 2})  // mean 1, scatter 1: too wide as well
    losses.add("c", seed, static_cast<double>(seed), {3, -3, 3});
  size_t seeds = 3;
  while (std::sqrt(2.0 / static_cast<double>(seeds)) * student_t(static_cast<int>(seeds) - 1) >= 1) ++seeds;
  times = 1;
  while (of_text * std::sqrt(2.0 / times) >= 1) ++times;
  const std::string both = losses.compare("", {{"c", 1}, {"a", -1}}, kPositive).would_decide;
  EXPECT_EQ(both, std::to_string(times) + " times the text and " + std::to_string(seeds) + " seeds a row, 3 are here");
}

TEST(Measurements, SayWhereNoNumberOfSeedsWouldDecide) {
  Measurements single;
  single.add("a", 0, 1), single.add("b", 0, 2);
  EXPECT_EQ(single.compare("", {{"b", 1}, {"a", -1}}, kPositive).would_decide, "rows with several seeds");
}

TEST(Measurements, HaveTheConfidenceThatTheyAreGiven) {
  Measurements losses(0.999);
  for (const uint64_t seed : {0, 1, 2}) losses.add("a", seed, static_cast<double>(seed));
  EXPECT_NEAR(losses.compare("", {{"a", 1}}, kPositive).band, student_t(2, 0.999) / std::sqrt(3.0), 1e-12);
}

}  // namespace
}  // namespace lethe
