// The rule for a diverged training, on hand-written courses.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "experiments/claims/record_files.hpp"
#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/papers/decaying_fast_weights/conversions.hpp"
#include "tests/experiments/claims/claim_study.hpp"
#include "tests/experiments/claims/statements.hpp"

namespace lethe {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

// A hundred steps from 5 nats down to 2, where a model without context has 2.7.
Course good_course() {
  Course course{.losses = {}, .validation_loss = 2.1, .loss_without_context = 2.7, .largest = 30, .vocabulary = 257};
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

TEST(Divergence, IsALastTenthWorseThanWithoutContext) {
  EXPECT_EQ(outcome_with([](Course& c) { std::fill(c.losses.end() - 10, c.losses.end(), 2.95); }),
            Outcome::kWorseThanBlind);
  EXPECT_EQ(outcome_with([](Course& c) { std::fill(c.losses.end() - 10, c.losses.end(), 2.85); }), Outcome::kConverged);
  EXPECT_EQ(outcome_with([](Course& c) { std::fill(c.losses.begin(), c.losses.end() - 10, 5.0); }), Outcome::kConverged)
      << "the steps before the last tenth do not count";
  EXPECT_EQ(outcome_with([](Course& c) {
              c.loss_without_context = kUndefined;
              std::fill(c.losses.end() - 10, c.losses.end(), 5.0);
            }),
            Outcome::kConverged)
      << "there is no such row";
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
  ASSERT_EQ(runs.size(), 1u + 4 * 2 + 1 + 1) << "the source, four rows of two seeds, additive linear, the control";
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
  // the source, two seeds of the gated and two of the decay rule; the control is no row of Table 2
  EXPECT_EQ(shared, 1u + 2 + 2);
}

TEST(Conversions, AreNoTestOfARuleWhoseMixerIsDead) {
  Conversions all;
  for (const uint64_t seed : {0, 1, 2}) {
    const double common = 0.1 * static_cast<double>(seed);
    all.losses.add(kWithoutContext, seed, 2.31 + common);
    all.losses.add("Additive linear", seed, 2.31 + common + 0.001 * static_cast<double>(seed));
    all.losses.add("Gated linear", seed, 1.5 + common + 0.001 * static_cast<double>(seed));
  }
  EXPECT_EQ(all.dead("Gated linear"), "");
  EXPECT_EQ(
      all.dead("Additive linear"),
      "Additive linear is not better than a model without context; with this mean no number of runs would show it "
      "to be");
  EXPECT_EQ(all.dead("absent"), "");
  all.diverged["Additive linear"] = {1, 1, 1};
  EXPECT_EQ(all.dead("Additive linear"),
            "Additive linear is not better than a model without context: each of its runs diverged, 3 here, and from "
            "those no number of runs follows; would be decided by one that converges, at a difference beyond the band");
}

TEST(Conversions, SayHowManyRunsWouldShowThatAMixerIsAlive) {
  Conversions all;
  for (const uint64_t seed : {0, 1, 2}) {
    all.losses.add(kWithoutContext, seed, 2.3);
    all.losses.add("Delta linear", seed, 2.25 + 0.1 * (static_cast<double>(seed) - 1));
    all.losses.add("Gated linear", seed, seed == 0 ? kUndefined : 1.5);
  }
  all.losses.add("Decay linear", 7, 1.5);
  const std::string dead = " is not better than a model without context";
  const Comparison reads =
      all.losses.compare("", {{kWithoutContext, 1}, {"Delta linear", -1}}, Expectation::positive());
  EXPECT_TRUE(reads.lacks().ends_with(" seeds a row, 3 are here")) << reads.lacks();
  EXPECT_EQ(all.dead("Delta linear"), "Delta linear" + dead + "; that " + reads.lacks());
  EXPECT_EQ(all.dead("Gated linear"),
            "Gated linear" + dead + ": one of its runs has no loss, and without a mean no number of runs follows");
  EXPECT_EQ(all.dead("Decay linear"), "Decay linear" + dead + ": its rows share no seed");
}

/// Table 1 at the scale smoke, of which the source alone is trained.
class DecayVariants : public ClaimStudy {
 protected:
  DecayVariants() : ClaimStudy("update_rules") {
    study.paper = read_paper(claim_folder(LETHE_SOURCE, experiment) / "paper.csv");
    settings["row_seeds"] = {{"others", 0}};
    train();
  }
};

TEST_F(DecayVariants, HaveANoteOfTheirOwn) {
  settings["first_run"] = "a first run", settings["decay_variants_after_a_run"] = "a late row";
  const std::vector<Comparison> found = experiment.measure(study).comparisons;
  EXPECT_EQ(one_of(found, "A write gate brings").note, "a late row");
  EXPECT_EQ(one_of(found, "The decay rule without the sigmoid").note, "a late row");
  EXPECT_EQ(one_of(found, "Without ReLU the decay rule").note, "a first run");
  EXPECT_EQ(one_of(found, "The delta rule without sum norm").note, "");
}

TEST(Conversions, RefuteNoDivergenceBeforeThePapersPrecisionAndSteps) {
  Conversions all;
  all.diverged["a"] = {0, 0};
  all.short_of_paper = "float32 instead of float16";
  all.add_divergence("a diverges", "", "a");
  all.add_divergence("b diverges", "", "b");
  all.short_of_paper = "";
  all.add_divergence("a diverges", "", "a");
  all.diverged["a"] = {1, 1};
  all.short_of_paper = "450 of 100000 steps";
  all.add_divergence("a diverges", "", "a");
  std::vector<Verdict> found;
  for (const Comparison& comparison : all.findings.comparisons) found.push_back(comparison.verdict());
  EXPECT_EQ(found,
            (std::vector{Verdict::kInconclusive, Verdict::kOutOfReach, Verdict::kRefuted, Verdict::kReproduced}));
}

TEST(ConversionRuns, OfTable1DifferFromEachOther) {
  std::set<std::string> models;
  for (const Row& row : table_1()) models.insert(nlohmann::json(row.architecture).dump());
  EXPECT_EQ(models.size(), table_1().size());
}

}  // namespace
}  // namespace lethe
