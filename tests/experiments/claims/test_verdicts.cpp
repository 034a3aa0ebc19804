// The rules for the verdict of a measurement, written before the first measurement.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

#include "experiments/claims/deciding.hpp"
#include "experiments/claims/verdict.hpp"

namespace lethe {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Comparison headline(double measured, double band, const Expectation& expectation = Expectation::positive()) {
  return {.statement = "a statement", .headline = true, .expectation = expectation, .measured = measured, .band = band};
}

TEST(Verdict, ADifferenceOnThePapersSideBeyondTheBandReproducesTheTrend) {
  EXPECT_EQ(judge(Expectation::positive(), 0.3, 0.2), Verdict::kTrendReproduced);
  EXPECT_EQ(judge(Expectation::negative(), -0.3, 0.2), Verdict::kTrendReproduced);
}

TEST(Verdict, ADifferenceOnTheOtherSideBeyondTheBandRefutes) {
  EXPECT_EQ(judge(Expectation::positive(), -0.3, 0.2), Verdict::kRefuted);
  EXPECT_EQ(judge(Expectation::negative(), 0.3, 0.2), Verdict::kRefuted);
}

TEST(Verdict, ADifferenceInsideTheBandIsInconclusiveOnEitherSide) {
  EXPECT_EQ(judge(Expectation::positive(), 0.1, 0.2), Verdict::kInconclusive);
  EXPECT_EQ(judge(Expectation::positive(), -0.1, 0.2), Verdict::kInconclusive);
  EXPECT_EQ(judge(Expectation::positive(), 0.2, 0.2), Verdict::kInconclusive);
}

TEST(Verdict, AStatedRangeIsReproducedOnlyWhereTheWholeBandLiesInIt) {
  const Expectation range = Expectation::between(0.10, 0.35);
  EXPECT_EQ(judge(range, 0.2, 0.05), Verdict::kReproduced);
  EXPECT_EQ(judge(range, 0.2, 0.15), Verdict::kTrendReproduced);
  EXPECT_EQ(judge(range, 0.05, 0.02), Verdict::kDirectionReproduced);
  EXPECT_EQ(judge(range, 0.9, 0.1), Verdict::kDirectionReproduced);
  EXPECT_EQ(judge(range, -0.1, 0.02), Verdict::kRefuted);
  EXPECT_EQ(judge(range, 0.05, 0.2), Verdict::kInconclusive);
}

TEST(Verdict, NoEffectIsReproducedInsideItsMarginAndRefutedOutside) {
  const Expectation none = Expectation::within(0.01);
  EXPECT_EQ(judge(none, 0.002, 0.005), Verdict::kReproduced);
  EXPECT_EQ(judge(none, -0.002, 0.0), Verdict::kReproduced);
  EXPECT_EQ(judge(none, 0.002, 0.02), Verdict::kInconclusive);
  EXPECT_EQ(judge(none, 0.05, 0.02), Verdict::kRefuted);
  EXPECT_EQ(judge(none, -0.05, 0.02), Verdict::kRefuted);
}

TEST(Verdict, AnUpperBoundRefutesAboveIt) {
  const Expectation bound{.high = 1e-4};
  EXPECT_EQ(judge(bound, 1e-9, 0), Verdict::kReproduced);
  EXPECT_EQ(judge(bound, 1e-3, 0), Verdict::kRefuted);
}

TEST(Verdict, WhatAControlDoesTooIsInconclusive) {
  Comparison fall = headline(0.3, 0.1);
  fall.control = Control{"blind", 0.05, 0.1};
  EXPECT_EQ(fall.verdict(), Verdict::kTrendReproduced);
  fall.control = Control{"blind", 0.2, 0.1};
  EXPECT_EQ(fall.verdict(), Verdict::kInconclusive) << "the control falls too";
  Comparison share = headline(0.7, 0.05, Expectation::between(0.6, 0.8));
  share.control = Control{"untrained", 0.97, 0.01};
  EXPECT_EQ(share.verdict(), Verdict::kReproduced) << "the control has the direction alone";
  share.control = Control{"untrained", 0.65, 0.01};
  EXPECT_EQ(share.verdict(), Verdict::kInconclusive);
  Comparison refuted = headline(-0.3, 0.1);
  refuted.control = Control{"blind", 0.3, 0.1};
  EXPECT_EQ(refuted.verdict(), Verdict::kRefuted) << "a control saves nothing";
}

TEST(Verdict, SaysThatNoNumberOfRunsDecidesWhereTheControlDoesAsWell) {
  Comparison share = headline(0.85, 0.03, Expectation::between(0.6, 0.8));
  share.control = Control{"untrained", 0.97, 0.01};
  EXPECT_EQ(share.lacks(), "the control does as well: with these means no number of runs would decide it");
  const nlohmann::json json = share;
  EXPECT_EQ(json.at("control").at("does_as_well"), true);
  EXPECT_EQ(nlohmann::json(json.get<Comparison>()), json);
  share.control->measured = -1;
  EXPECT_EQ(share.lacks(), "");
  EXPECT_FALSE(nlohmann::json(share).at("control").contains("does_as_well"));
  share.control->measured = 0.97;
  share.open = "another reason";
  EXPECT_EQ(share.lacks(), "") << "which says why";
}

TEST(Verdict, SaysThatNoNumberOfRunsDecidesAMeanOnItsBound) {
  Comparison tied = headline(0, 0.1);
  EXPECT_EQ(tied.lacks(), "would be decided by no number of runs with this mean, which is the bound itself");
  const nlohmann::json json = tied;
  EXPECT_EQ(json.at("would_decide"), "no number of runs with this mean, which is the bound itself");
  EXPECT_EQ(nlohmann::json(json.get<Comparison>()), json);
  tied.open = "another reason";
  EXPECT_EQ(tied.lacks(), "") << "which says why";
  EXPECT_EQ(headline(0, 0.1, Expectation::within(0.01)).lacks(), "") << "a margin is no bound at 0";
  EXPECT_EQ(headline(kNaN, 0.1).lacks(), "");
}

TEST(Verdict, AReasonDecidesBeforeTheNumbers) {
  Comparison comparison = headline(-1, 0.1);
  EXPECT_EQ(comparison.verdict(), Verdict::kRefuted);
  comparison.no_refutation = "450 of 100000 steps";
  EXPECT_EQ(comparison.verdict(), Verdict::kInconclusive);
  comparison.measured = 1;
  EXPECT_EQ(comparison.verdict(), Verdict::kTrendReproduced) << "what is seen counts";
  comparison.open = "runs that don't differ";
  EXPECT_EQ(comparison.verdict(), Verdict::kInconclusive);
  comparison.out_of_reach = "this scale does not train it";
  EXPECT_EQ(comparison.verdict(), Verdict::kOutOfReach);
  EXPECT_EQ(overall({comparison, headline(1, 0.1)}), Verdict::kOutOfReach);
  EXPECT_EQ(overall({comparison, headline(0, 0.1)}), Verdict::kInconclusive);
}

TEST(Verdict, NotANumberAndAnUnknownBandAreNeverAResult) {
  EXPECT_EQ(judge(Expectation::positive(), kNaN, 0.1), Verdict::kInconclusive);
  EXPECT_EQ(judge(Expectation::positive(), 1, kNaN), Verdict::kInconclusive);
  EXPECT_EQ(judge(Expectation::positive(), 1, kInfinity), Verdict::kInconclusive);
  EXPECT_EQ(judge(Expectation::within(1), kNaN, 0), Verdict::kInconclusive);
}

TEST(Verdict, TheClaimIsAsGoodAsItsWorstHeadline) {
  const Comparison trend = headline(1, 0.1), refuted = headline(-1, 0.1), unclear = headline(0, 0.1);
  const Comparison exact = headline(0, 0.1, Expectation::within(1));
  EXPECT_EQ(overall({exact, exact}), Verdict::kReproduced);
  EXPECT_EQ(overall({exact, trend}), Verdict::kTrendReproduced);
  EXPECT_EQ(overall({exact, trend, unclear}), Verdict::kInconclusive);
  EXPECT_EQ(overall({exact, unclear, refuted}), Verdict::kRefuted);
}

TEST(Verdict, OtherStatementsDoNotDecideOverTheClaim) {
  Comparison detail = headline(-1, 0.1);
  detail.headline = false;
  EXPECT_EQ(overall({headline(1, 0.1), detail}), Verdict::kTrendReproduced);
  EXPECT_THROW(overall({detail}), std::invalid_argument);
}

TEST(Verdict, IsWrittenWithItsWordsAndWithoutNumbersThatJsonLacks) {
  const nlohmann::json json = headline(1, kInfinity);
  EXPECT_EQ(json.at("verdict"), "inconclusive at this scale");
  EXPECT_TRUE(json.at("band").is_null());
  EXPECT_TRUE(json.at("expected").at("high").is_null());
}

TEST(Verdict, IsTheSameAfterARoundTripThroughJson) {
  Comparison comparison = headline(1, 0.1, {.low = 0.5});
  comparison.control = Control{"untrained", 2, kInfinity};
  comparison.no_refutation = "float32";
  comparison.note = "a headline once";
  const nlohmann::json json = comparison;
  EXPECT_EQ(nlohmann::json(json.get<Comparison>()), json);
  comparison.open = "tied";
  EXPECT_EQ(nlohmann::json(comparison).get<Comparison>().verdict(), Verdict::kInconclusive);
}

TEST(StudentT, AgreesWithThePrintedTableToThreeDecimals) {
  const std::vector<double> table = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447,
                                     2.365,  2.306, 2.262, 2.228, 2.201, 2.179};
  for (size_t i = 0; i < table.size(); ++i) EXPECT_NEAR(student_t(static_cast<int>(i) + 1), table[i], 5e-4) << i + 1;
  EXPECT_NEAR(student_t(30), 2.042, 5e-4);
  EXPECT_NEAR(student_t(100), 1.984, 5e-4);
  EXPECT_NEAR(student_t(1), std::tan(std::numbers::pi * 0.475), 1e-12);  // Cauchy's distribution
  EXPECT_NEAR(student_t(5, 0.999), 6.869, 5e-4);
  EXPECT_THROW(student_t(0), std::invalid_argument);
  EXPECT_THROW(student_t(1, 1), std::invalid_argument);
}

// Certificates from before a size could be contradicted call that a trend.
std::string expected_of(const nlohmann::json& json) {
  const auto found = json.get<Comparison>().verdict();
  return json.at("verdict") == "trend reproduced" && found == Verdict::kDirectionReproduced
             ? to_string(Verdict::kDirectionReproduced)
             : json.at("verdict").get<std::string>();
}

TEST(CommittedVerdicts, FollowFromTheirNumbers) {
  size_t judged = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(LETHE_SOURCE "/results")) {
    if (file.path().extension() != ".json") continue;
    const auto certificate = nlohmann::json::parse(std::ifstream(file.path()));
    if (!certificate.is_object()) continue;
    for (const auto& json : certificate.value("comparisons", nlohmann::json::array())) {
      const auto comparison = json.get<Comparison>();
      EXPECT_EQ(to_string(comparison.verdict()), expected_of(json)) << file.path() << ": " << comparison.statement;
      ++judged;
    }
  }
  EXPECT_GT(judged, 0u);
}

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoInTheMiddle) {
  EXPECT_DOUBLE_EQ(median({5, 1, 3}), 3);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 100}), 3.5);
  EXPECT_THROW(median({}), std::invalid_argument);
}

TEST(DecidingSample, IsTheSmallestWholeFactorThatGivesAVerdict) {
  Comparison one{.expectation = Expectation::positive(), .measured = 0.1, .band = 0.25};
  EXPECT_EQ(deciding_sample(one, 0.25, 0, "the text"), "7 times the text")
      << "0.25 / sqrt(7) is below 0.1, / sqrt(6) isn't";
  EXPECT_EQ(deciding_sample(one, 5, 0, "the text"), "more than 1000 times the text");
  EXPECT_EQ(deciding_sample(one, 0.25, 0.2, "the text"), "more than the text alone: another noise is too wide");
  one.measured = 0.3;
  EXPECT_EQ(deciding_sample(one, 0.25, 0, "the text"), "") << "it has its verdict";
  one.measured = 0;
  EXPECT_EQ(deciding_sample(one, 0.25, 0, "the text"), "") << "nothing would give it one";
}

}  // namespace
}  // namespace lethe
