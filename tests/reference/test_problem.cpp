#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "reference/head.hpp"
#include "reference/problem.hpp"

namespace lethe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Rounding, BFloat16KeepsEightSignificantBits) {
  EXPECT_EQ(round_to(Dtype::kBFloat16, 1.0 + 0x1p-7), 1.0 + 0x1p-7);
  EXPECT_EQ(round_to(Dtype::kBFloat16, 1.0 + 0x1p-8), 1.0);           // a tie goes to even
  EXPECT_EQ(round_to(Dtype::kBFloat16, 1.0 + 0x3p-8), 1.0 + 0x1p-6);  // and here even is above
  EXPECT_EQ(round_to(Dtype::kBFloat16, -(1.0 + 0x1.1p-8)), -(1.0 + 0x1p-7));
}

TEST(Rounding, Float16OverflowsAndKeepsSubnormals) {
  EXPECT_EQ(round_to(Dtype::kFloat16, 65519.0), 65504.0);
  EXPECT_EQ(round_to(Dtype::kFloat16, 65520.0), kInf);
  EXPECT_EQ(round_to(Dtype::kFloat16, 0x1p-24), 0x1p-24);
  EXPECT_EQ(round_to(Dtype::kFloat16, 0x1.8p-24), 0x1p-23);
  EXPECT_EQ(round_to(Dtype::kFloat16, 0x1p-26), 0.0);
  EXPECT_EQ(round_to(Dtype::kFloat16, 0x5p-25), 0x1p-23);  // a tie of two subnormals
  EXPECT_TRUE(std::signbit(round_to(Dtype::kFloat16, -0x1p-26)));
}

TEST(RandomProblem, IsTheSameForTheSameSeedAndDiffersForAnother) {
  const Shape shape{2, 3, 5, 2, 4, 3, 6};
  const Problem a = random_problem(shape, Dtype::kFloat32, Gate::kInitial, 7);
  EXPECT_EQ(a.query, random_problem(shape, Dtype::kFloat32, Gate::kInitial, 7).query);
  EXPECT_NE(a.query, random_problem(shape, Dtype::kFloat32, Gate::kInitial, 8).query);
}

TEST(RandomProblem, IsNormalWithUnitVariance) {
  const Problem p = random_problem({1, 1000, 1000, 1, 1, 50, 1}, Dtype::kFloat64, Gate::kZero, 1);
  const double n = static_cast<double>(p.query.size());
  const double mean = std::accumulate(p.query.begin(), p.query.end(), 0.0) / n;
  const double square = std::inner_product(p.query.begin(), p.query.end(), p.query.begin(), 0.0) / n;
  EXPECT_NEAR(mean, 0.0, 5.0 / std::sqrt(n));
  EXPECT_NEAR(square, 1.0, 5.0 * std::sqrt(2.0 / n));
}

TEST(RandomProblem, EveryGateIsAtMostZeroAndInItsBand) {
  const Shape shape{1, 4096, 4096, 1, 1, 1, 1};
  for (Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kSpiky, Gate::kZero, Gate::kCutting}) {
    const Problem p = random_problem(shape, Dtype::kFloat32, gate, 3);
    for (double x : p.log_forget) EXPECT_LE(x, 0.0) << gate_name(gate);
  }
  const auto mean = [&](Gate gate) {
    const Problem p = random_problem(shape, Dtype::kFloat64, gate, 3);
    return std::accumulate(p.log_forget.begin(), p.log_forget.end(), 0.0) / 4096.0;
  };
  EXPECT_NEAR(mean(Gate::kOpen), -1e-4, 1e-5);
  EXPECT_NEAR(mean(Gate::kInitial), -0.766, 0.03);
  EXPECT_NEAR(mean(Gate::kStrong), -5.0, 0.2);
  const Problem cutting = random_problem(shape, Dtype::kFloat32, Gate::kCutting, 3);
  EXPECT_NEAR(static_cast<double>(std::count(cutting.log_forget.begin(), cutting.log_forget.end(), -kInf)), 256.0,
              80.0);
}

TEST(RandomProblem, NamesTheInputThatIsWrong) {
  try {
    random_problem({1, 5, 4, 1, 1, 1, 1}, Dtype::kFloat64, Gate::kZero, 0);
    FAIL() << "expected an exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "query_length: expected at most key_length = 4, found 5");
  }
  EXPECT_THROW(random_problem({1, 1, 1, 2, 3, 1, 1}, Dtype::kFloat64, Gate::kZero, 0), std::invalid_argument);
}

TEST(HeadOf, ReadsTheGroupedKeyHeadOfTheAskedBatch) {
  const Shape shape{2, 3, 5, 2, 4, 3, 6};
  const Problem p = random_problem(shape, Dtype::kFloat64, Gate::kInitial, 11);
  const Head h = head_of(p, 1, 3);  // group of two: key head 1
  EXPECT_EQ(h.query(2, 1), p.query[((1 * 3 + 2) * 4 + 3) * 3 + 1]);
  EXPECT_EQ(h.key(4, 2), p.key[((1 * 5 + 4) * 2 + 1) * 3 + 2]);
  EXPECT_EQ(h.value(0, 5), p.value[((1 * 5 + 0) * 2 + 1) * 6 + 5]);
  EXPECT_EQ(h.log_forget(3), p.log_forget[(1 * 5 + 3) * 4 + 3]);
  EXPECT_THROW(head_of(p, 2, 0), std::out_of_range);
}

}  // namespace
}  // namespace lethe
