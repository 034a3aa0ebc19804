// The rules for the verdict of a measurement, written before the first measurement.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

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
  EXPECT_EQ(judge(range, 0.05, 0.02), Verdict::kTrendReproduced);
  EXPECT_EQ(judge(range, 0.9, 0.1), Verdict::kTrendReproduced);
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

TEST(Noise, PoolsTheScatterOfRowsWithSeveralSeeds) {
  // Deviations ±1 around 2, and −2, 0, 2 around 12: squares 2 + 8 over 1 + 2 degrees.
  const Noise noise({{1, 3}, {10, 12, 14}, {7}});
  EXPECT_EQ(noise.degrees(), 3);
  EXPECT_DOUBLE_EQ(noise.deviation(), std::sqrt(10.0 / 3));
  EXPECT_DOUBLE_EQ(noise.band(1.0 / 2 + 1), student_t(3) * std::sqrt(10.0 / 3) * std::sqrt(1.5));
}

TEST(Noise, OfTwoKindsHasTheDegreesOfWelchAndSatterthwaite) {
  const Noise quiet({{1, 3}, {10, 12, 14}});      // 3 degrees, variance 10/3
  const Noise loud({{0, 20}, {0, 20}, {0, 20}});  // 3 degrees, variance 200
  const Noise unknown({{1}, {2}});
  const double u = 10.0 / 3 / 2, w = 200.0 / 3;
  const int degrees = static_cast<int>((u + w) * (u + w) / (u * u / 3 + w * w / 3));
  EXPECT_EQ(degrees, 3);
  EXPECT_DOUBLE_EQ(band_of({{quiet, 1.0 / 2}, {loud, 1.0 / 3}}), student_t(degrees) * std::sqrt(u + w));
  EXPECT_DOUBLE_EQ(band_of({{loud, 1.0}, {loud, 1.0}}), student_t(6) * 20);  // equal parts: the degrees add up
  EXPECT_DOUBLE_EQ(band_of({{quiet, 2.0}, {unknown, 0.0}}), quiet.band(2.0));
  EXPECT_EQ(band_of({{quiet, 2.0}, {unknown, 1.0}}), kInfinity);
}

TEST(Noise, IsUnknownWhereNoRowHasTwoSeeds) {
  const Noise noise({{1}, {2}});
  EXPECT_EQ(noise.degrees(), 0);
  EXPECT_EQ(noise.band(1), kInfinity);
}

TEST(StudentT, AgreesWithThePrintedTableToThreeDecimals) {
  const std::vector<double> table = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447,
                                     2.365,  2.306, 2.262, 2.228, 2.201, 2.179};
  for (size_t i = 0; i < table.size(); ++i) EXPECT_NEAR(student_t(static_cast<int>(i) + 1), table[i], 5e-4) << i + 1;
  EXPECT_NEAR(student_t(30), 2.042, 5e-4);
  EXPECT_NEAR(student_t(100), 1.984, 5e-4);
  EXPECT_NEAR(student_t(1), std::tan(std::numbers::pi * 0.475), 1e-12);  // Cauchy's distribution
  EXPECT_THROW(student_t(0), std::invalid_argument);
}

// Committed bands were computed from a table of three decimals, off by up to 1.7e-4 of its entries.
TEST(CommittedVerdicts, FollowFromTheirNumbersWithExactQuantilesToo) {
  size_t judged = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(LETHE_SOURCE "/results")) {
    if (file.path().extension() != ".json") continue;
    const auto certificate = nlohmann::json::parse(std::ifstream(file.path()));
    for (const auto& c : certificate.value("comparisons", nlohmann::json::array())) {
      const auto number = [](const nlohmann::json& json, double otherwise) {
        return json.is_null() ? otherwise : json.get<double>();
      };
      const auto& expected = c.at("expected");
      const Expectation expectation{number(expected.at("low"), -kInfinity), number(expected.at("high"), kInfinity),
                                    expected.at("direction")};
      for (const double factor : {1 - 1.7e-4, 1.0, 1 + 1.7e-4})
        EXPECT_EQ(
            to_string(judge(expectation, number(c.at("measured"), kNaN), factor * number(c.at("band"), kInfinity))),
            c.at("verdict"))
            << file.path() << ": " << c.at("statement");
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

}  // namespace
}  // namespace lethe
