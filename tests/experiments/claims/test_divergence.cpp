// The rule for a diverged training, on hand-written courses.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/papers/decaying_fast_weights/conversions.hpp"

namespace lethe {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// A hundred steps from 5 nats down to 2, for a model with 1.9 before the swap.
Course good_course() {
  Course course{.losses = {}, .validation_loss = 2.1, .loss_before_swap = 1.9, .largest = 30, .vocabulary = 257};
  for (int step = 0; step < 100; ++step) course.losses.push_back(2 + 3 * std::exp(-step / 10.0));
  return course;
}

Outcome outcome_with(void (*change)(Course&)) {
  Course course = good_course();
  change(course);
  return outcome_of(course);
}

TEST(Divergence, IsNotSeenInACourseThatFalls) {
  EXPECT_EQ(outcome_of(good_course()), Outcome::kConverged);
  EXPECT_EQ(outcome_with([](Course& c) { c.losses.front() = 50; }), Outcome::kConverged)
      << "where it began does not count";
}

TEST(Divergence, IsALossThatIsNotFinite) {
  EXPECT_EQ(outcome_with([](Course& c) { c.stopped = true; }), Outcome::kNotFinite);
  EXPECT_EQ(outcome_with([](Course& c) { c.validation_loss = kUndefined; }), Outcome::kNotFinite);
  EXPECT_EQ(outcome_with([](Course& c) { c.losses.clear(), c.stopped = true; }), Outcome::kNotFinite);
}

TEST(Divergence, IsALossAboveThatOfEqualProbabilities) {
  EXPECT_EQ(outcome_with([](Course& c) { c.validation_loss = std::log(257) + 0.01; }), Outcome::kWorseThanChance);
  EXPECT_EQ(outcome_with([](Course& c) { c.validation_loss = std::log(257) - 0.01; }), Outcome::kConverged);
}

TEST(Divergence, IsALastTenthMoreThanOneNatAboveTheLossBeforeTheSwap) {
  EXPECT_EQ(outcome_with([](Course& c) { std::fill(c.losses.end() - 10, c.losses.end(), 2.95); }),
            Outcome::kForgotWhatItKnew);
  EXPECT_EQ(outcome_with([](Course& c) { std::fill(c.losses.end() - 10, c.losses.end(), 2.85); }), Outcome::kConverged);
  EXPECT_EQ(outcome_with([](Course& c) { std::fill(c.losses.begin(), c.losses.end() - 10, 5.0); }), Outcome::kConverged)
      << "the steps before the last tenth do not count";
}

TEST(Divergence, IsNamedWhereOnlyFloat16WouldHaveSeenIt) {
  EXPECT_EQ(outcome_with([](Course& c) { c.largest = 65505; }), Outcome::kOverflowsFloat16);
  EXPECT_EQ(outcome_with([](Course& c) { c.largest = 65504; }), Outcome::kConverged);
  EXPECT_EQ(outcome_with([](Course& c) { c.largest = 1e9, c.stopped = true; }), Outcome::kNotFinite)
      << "what was seen goes first";
}

nlohmann::json settings_of(const char* claim) {
  return claim_settings(LETHE_SOURCE, select_experiments({claim}).front(), "quick");
}

TEST(ConversionRuns, StartFromOneSourceAndReadTheSameBatches) {
  const nlohmann::json settings = settings_of("update_rules");
  const auto runs = conversion_runs(table_1(), settings, 257);
  ASSERT_EQ(runs.size(), 1 + table_1().size() + 3 * 2);
  EXPECT_EQ(runs.front().conversion, nullptr);
  EXPECT_EQ(runs.front().training.total_tokens, settings.at("source").at("total_tokens"));
  for (size_t r = 1; r < runs.size(); ++r) {
    EXPECT_EQ(runs[r].conversion, runs[1].conversion) << runs[r].label;
    EXPECT_EQ(runs[r].training.total_tokens, runs[1].training.total_tokens);
    EXPECT_EQ(runs[r].training.batch_tokens, runs[1].training.batch_tokens);
    EXPECT_TRUE(runs[r].training.divergence_is_a_result);
  }
}

TEST(ConversionRuns, OfBothTablesShareTheirRowsWithTheSmallestState) {
  const auto keys = [](const std::vector<lethe::Run>& runs) {
    std::set<std::string> all;
    for (lethe::Run run : runs) {
      run.label.clear();
      all.insert(nlohmann::json(run).dump());
    }
    return all;
  };
  const auto first = keys(conversion_runs(table_1(), settings_of("update_rules"), 257));
  const auto second = keys(conversion_runs(table_2(settings_of("state_capacity")), settings_of("state_capacity"), 257));
  size_t shared = 0;
  for (const auto& key : second) shared += first.contains(key);
  EXPECT_EQ(shared, 1u + 3 + 3);  // the source, three seeds of the gated and three of the decay rule
}

TEST(ConversionNoise, IsWhatSeedsDontDoToAllRowsAlike) {
  Conversions all;
  // Rows at 1, 2 and 4, plus 0, 10 and 20 by seed.
  all.losses = {{"a", {1, 11, 21}}, {"b", {2, 12, 22}}, {"c", {4, 14, 24}}, {"single", {7}}};
  const Comparison exact = all.compare("b is above a", {{"b", 1}, {"a", -1}}, Expectation::positive());
  EXPECT_NEAR(exact.measured, 1, 1e-12);
  EXPECT_NEAR(exact.band, 0, 1e-12) << "a seed's effect on all rows is no noise";
  const Comparison paired = all.compare("single is above a", {{"single", 1}, {"a", -1}}, Expectation::positive());
  EXPECT_NEAR(paired.measured, 6, 1e-12) << "against the same seed of a";

  // residuals 0.4, −0.2, −0.2 of a and −0.2, 0.1, 0.1 of b and c: squares 0.36 over 4 degrees
  all.losses["a"][0] += 0.9;
  EXPECT_NEAR(all.compare("", {{"single", 1}, {"b", -1}}, Expectation::positive()).band,
              student_t(4) * 0.3 * std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(all.compare("", {{"c", 1}, {"b", -1}}, Expectation::positive()).band,
              student_t(4) * 0.3 * std::sqrt(2.0 / 3), 1e-12);
}

TEST(ConversionNoise, IsUnknownWithoutTwoRowsOfSeveralSeeds) {
  Conversions all;
  all.losses = {{"a", {1, 2, 3}}, {"b", {2}}};
  EXPECT_EQ(all.compare("", {{"b", 1}, {"a", -1}}, Expectation::positive()).verdict(), Verdict::kInconclusive);
  all.losses["b"] = {2, kUndefined, 4};
  EXPECT_EQ(all.compare("", {{"b", 1}, {"a", -1}}, Expectation::positive()).verdict(), Verdict::kInconclusive);
}

TEST(ConversionRuns, OfTable1DifferFromEachOther) {
  std::set<std::string> models;
  for (const Row& row : table_1()) models.insert(nlohmann::json(row.architecture).dump());
  EXPECT_EQ(models.size(), table_1().size());
}

}  // namespace
}  // namespace lethe
