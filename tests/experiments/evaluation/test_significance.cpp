// The tests of means against the published numbers of the forgetting curve's program, and by hand.

#include <gtest/gtest.h>

#include <cmath>

#include "experiments/evaluation/significance.hpp"
#include "tests/experiments/evaluation/published_curve.hpp"

namespace lethe {
namespace {

TEST(PairedTTest, GivesThePublishedProbabilities) {
  for (const PublishedPoint& point : kPublishedCurve) {
    const CurvePoint measured = point.accuracies();
    EXPECT_NEAR(paired_t_test(measured.lm, measured.copy) / point.p, 1, 1e-9) << point.length;
    EXPECT_EQ(paired_t_test(measured.lm, measured.copy), paired_t_test(measured.copy, measured.lm)) << point.length;
  }
}

TEST(PairedTTest, IsOneForEqualAndZeroForShiftedValues) {
  EXPECT_EQ(paired_t_test({0.1, 0.2, 0.4}, {0.1, 0.2, 0.4}), 1);
  EXPECT_EQ(paired_t_test({1, 2, 4}, {2, 3, 5}), 0);
  EXPECT_EQ(paired_t_test({1, -1}, {0, 0}), 1);
}

TEST(PairedTTest, RefusesValuesWithoutAPartner) {
  EXPECT_THROW(paired_t_test({1, 2}, {1}), std::invalid_argument);
  EXPECT_THROW(paired_t_test({1}, {1}), std::invalid_argument);
}

std::vector<std::vector<double>> lm_accuracies_at(const std::vector<int64_t>& lengths) {
  std::vector<std::vector<double>> groups;
  for (const int64_t length : lengths)
    for (const PublishedPoint& point : kPublishedCurve)
      if (point.length == length) groups.push_back(point.accuracies().lm);
  return groups;
}

const std::vector<std::vector<double>> kToy = {{1, 2, 3, 4}, {2, 3, 4, 5}, {4, 5, 6, 7}};

TEST(OneWayAnova, EqualsGoldensOfPublishedAccuracies) {
  const TestOfGroups alike = one_way_anova(lm_accuracies_at({523, 1039, 2071}));
  EXPECT_NEAR(alike.statistic, 0.3652680668, 1e-9);
  EXPECT_NEAR(alike.p, 0.6973876028, 1e-9);
  const TestOfGroups unlike = one_way_anova(lm_accuracies_at({4650, 5166, 5682}));
  EXPECT_NEAR(unlike.statistic, 289.2407046683, 1e-9);
  EXPECT_NEAR(unlike.p, 5.8217e-19, 1e-23);
  const TestOfGroups toy = one_way_anova(kToy);
  EXPECT_NEAR(toy.statistic, 5.6, 1e-12);
  EXPECT_NEAR(toy.p, 0.0263032934, 1e-9);
}

TEST(KruskalWallis, EqualsGoldensOfPublishedAccuracies) {
  const TestOfGroups alike = kruskal_wallis(lm_accuracies_at({523, 1039, 2071}));
  EXPECT_NEAR(alike.statistic, 0.9320275985, 1e-9);
  EXPECT_NEAR(alike.p, 0.6274986250, 1e-9);
  const TestOfGroups unlike = kruskal_wallis(lm_accuracies_at({4650, 5166, 5682}));
  EXPECT_NEAR(unlike.statistic, 25.8064516129, 1e-9);
  EXPECT_NEAR(unlike.p, std::exp(-unlike.statistic / 2), 1e-15) << "exact for three groups";
  const TestOfGroups toy = kruskal_wallis(kToy);
  EXPECT_NEAR(toy.statistic, 6.1012544803, 1e-9);
  EXPECT_NEAR(toy.p, 0.0473292283, 1e-9);
}

TEST(TestsOfGroups, SeeNoEffectInEqualValuesAndAllInConstants) {
  for (const auto test : {one_way_anova, kruskal_wallis}) {
    EXPECT_EQ(test({{0.1, 0.1, 0.1}, {0.1, 0.1, 0.1}}).p, 1);
    EXPECT_THROW(test({{1, 2}}), std::invalid_argument);
    EXPECT_THROW(test({{1, 2}, {}}), std::invalid_argument);
  }
  EXPECT_EQ(one_way_anova({{0.1, 0.1, 0.1}, {0.2, 0.2, 0.2}}).p, 0);
  EXPECT_THROW(one_way_anova({{1}, {2}}), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
