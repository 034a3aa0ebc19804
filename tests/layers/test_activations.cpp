#include <cmath>
#include <limits>

#include "reference/layers/sigmoid.hpp"
#include "reference/layers/swiglu.hpp"
#include "tests/support/matrices.hpp"

namespace lethe::reference::layers {
namespace {

TEST(Swiglu, GatesTheSecondHalfByTheFirst) {
  const double log3 = std::log(3.0);  // σ(log 3) = 3/4
  const Matrix<double> expected{{1.5 * log3, -2.5 * log3}};
  EXPECT_LT(relative_error(swiglu<double>(Matrix<double>{{log3, -log3, 2.0, 10.0}}), expected), kExact);
  EXPECT_GT(relative_error(swiglu<double>(Matrix<double>{{2.0, 10.0, log3, -log3}}), expected), kClearlyWrong)
      << "halves swapped";
}

TEST(Swiglu, RefusesAnOddNumberOfColumns) {
  EXPECT_THROW(swiglu<double>(Matrix<double>::Ones(1, 3)), std::invalid_argument);
}

TEST(Sigmoid, IsOneHalfAtZeroAndSymmetric) {
  const Matrix<double> logits = random_matrix(1, 50, 1);
  EXPECT_EQ(sigmoid<double>(Matrix<double>::Zero(1, 1))(0, 0), 0.5);
  EXPECT_LT(relative_error(sigmoid<double>(-logits), 1.0 - sigmoid<double>(logits).array()), kExact);
}

TEST(LogSigmoid, StaysExactWhereTheSigmoidUnderflows) {
  const Matrix<double> logits{{-1000.0, -100.0, 0.0, 40.0}};
  const Matrix<double> expected{{-1000.0, -100.0, -std::log(2.0), -std::exp(-40.0)}};
  const Matrix<double> found = log_sigmoid<double>(logits);
  for (Eigen::Index i = 0; i < 4; ++i) EXPECT_NEAR(found(0, i) / expected(0, i), 1.0, kExact) << logits(0, i);

  const Matrix<double> naive = sigmoid<double>(logits).array().log();
  EXPECT_EQ(naive(0, 0), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(naive(0, 3), 0.0);
}

}  // namespace
}  // namespace lethe::reference::layers
