#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/compensated_sum.hpp"
#include "reference/decay_bias.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

using reference::CompensatedSum;
using reference::DecayBias;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int64_t kLong = 262144;

// Gates in steps of 2⁻⁴⁰ down to −8: 2²¹ in all, so that their sums need 61 bits, which an integer holds exactly and a
// double doesn't.
struct LongSequence {
  Vector<double> log_forget{kLong};
  std::vector<int64_t> exact = std::vector<int64_t>(kLong);  // prefix sums in steps of 2⁻⁴⁰

  LongSequence() {
    const Head head = random_head({1, kLong}, Gate::kStrong);
    int64_t sum = 0;
    for (int64_t t = 0; t < kLong; ++t) {
      const auto steps = static_cast<int64_t>(std::max(head.log_forget[t], -8.0) * 0x1p40);
      log_forget[t] = std::ldexp(static_cast<double>(steps), -40);
      exact[t] = sum += t == 0 ? 0 : steps;
    }
  }
  double decay(int64_t i, int64_t j) const { return std::ldexp(static_cast<double>(exact[i] - exact[j]), -40); }
};

TEST(DecayBias, IsExactToARoundingBetweenAnyTwoOf262144Positions) {
  const LongSequence sequence;
  const DecayBias<double> bias(sequence.log_forget);
  for (int64_t i : {int64_t{1}, int64_t{100}, kLong / 2, kLong - 1}) {
    for (int64_t distance = 1; distance <= i; distance *= 3) {
      const double expected = sequence.decay(i, i - distance);
      EXPECT_NEAR(bias(i, i - distance), expected, -3e-16 * expected) << i << " − " << distance;
    }
  }
}

TEST(DecayBias, WouldLoseNeighboursOverALongSequenceWithAPlainPrefixSum) {
  const LongSequence sequence;
  double plain = 0.0, before = 0.0;
  for (int64_t t = 1; t < kLong; ++t) {
    before = plain;
    plain += sequence.log_forget[t];
  }
  EXPECT_GT(std::abs(plain - before - sequence.log_forget[kLong - 1]), 3e-12);
}

TEST(DecayBias, IsZeroOnTheDiagonalAndMinusInfinityAcrossAZeroGate) {
  const Vector<double> log_forget{{-1.0, -0.5, kMinusInfinity, -0.25, kMinusInfinity, kMinusInfinity, -2.0}};
  const DecayBias<double> bias(log_forget);
  for (int64_t i = 0; i < 7; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double expected = 0.0;
      for (int64_t l = j + 1; l <= i; ++l) expected += log_forget[l];
      EXPECT_EQ(bias(i, j), expected) << i << ", " << j;
    }
  }
}

TEST(DecayBias, WorksInFloat) {
  const DecayBias<float> bias(Vector<float>{{0.0f, -0.5f, -std::numeric_limits<float>::infinity(), -0.25f}});
  EXPECT_EQ(bias(1, 0), -0.5f);
  EXPECT_EQ(bias(2, 1), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(bias(3, 2), -0.25f);
}

TEST(DecayBias, RefusesPositiveGatesAndNaN) {
  for (double bad : {0.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(DecayBias<double>(Vector<double>{{0.0, bad}}), std::invalid_argument);
  }
}

TEST(CompensatedSum, KeepsWhatRoundingDrops) {
  CompensatedSum<double> sum;
  sum.add(1.0);
  for (int i = 0; i < 1000; ++i) sum.add(1e-17);  // each alone rounds away
  sum.add(-1.0);
  EXPECT_NEAR(sum.value(), 1e-14, 1e-27);
  sum.scale(0.5);
  EXPECT_NEAR(sum.value(), 0.5e-14, 1e-27);
}

}  // namespace
}  // namespace lethe
