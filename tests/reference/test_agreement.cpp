#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "reference/agreement.hpp"

namespace lethe {
namespace {

TEST(Agreement, EqualTensorsHaveAnErrorOfZero) {
  const std::vector<double> x{1.0, -2.0, 3.0};
  EXPECT_EQ(compare(x, x, 1e-12).error, 0.0);
  EXPECT_TRUE(compare(x, x, 1e-12).passed());
}

TEST(Agreement, IsTheRelativeEuclideanError) {
  EXPECT_NEAR(compare(std::vector{3.0, 4.5}, std::vector{3.0, 4.0}, 1.0).error, 0.1, 1e-15);
}

TEST(Agreement, NaNAndInfinityFailOnEitherSide) {
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(compare(std::vector{bad}, std::vector{1.0}, 1e300).passed());
    EXPECT_FALSE(compare(std::vector{1.0}, std::vector{bad}, 1e300).passed());
    EXPECT_FALSE(compare(std::vector{bad}, std::vector{bad}, 1e300).passed());
  }
}

TEST(Agreement, DifferentSizesFail) { EXPECT_FALSE(compare(std::vector{1.0}, std::vector<double>{}, 1e300).passed()); }

TEST(Agreement, ATensorOfZerosIsMeasuredAgainstTheFloor) {
  EXPECT_NEAR(compare(std::vector{1e-3}, std::vector{0.0}, 1.0, 0.1).error, 1e-2, 1e-15);
}

}  // namespace
}  // namespace lethe
