#include "reference/layers/rms_norm.hpp"

#include "tests/support/matrices.hpp"

namespace lethe::reference::layers {
namespace {

constexpr double kTinyEpsilon = 1e-300;

TEST(RmsNorm, DividesByTheRootMeanSquareThenMultipliesByTheWeight) {
  const Matrix<double> row{{3.0, 4.0}};  // mean of squares 12.5; with ε = 3.5 the root is 4
  EXPECT_EQ(rms_norm<double>(row, Vector<double>{{1.0, 2.0}}, 1, 3.5), (Matrix<double>{{0.75, 2.0}}));
}

TEST(RmsNorm, IgnoresTheScaleOfItsInputUpToEpsilon) {
  const Matrix<double> rows = random_matrix(5, 12, 1);
  const Vector<double> weight = random_matrix(12, 1, 2);
  const Matrix<double> normed = rms_norm<double>(rows, weight, 1, kTinyEpsilon);
  EXPECT_LT(relative_error(rms_norm<double>(1e3 * rows, weight, 1, kTinyEpsilon), normed), kExact);
  EXPECT_GT(relative_error(rms_norm<double>(1e3 * rows, weight, 1, 1.0), rms_norm<double>(rows, weight, 1, 1.0)),
            kClearlyWrong);
}

TEST(RmsNorm, NormsEachHeadByItsOwnMean) {
  const Matrix<double> rows = random_matrix(4, 6, 3);
  const Vector<double> weight = random_matrix(6, 1, 4);
  const Matrix<double> normed = rms_norm<double>(rows, weight, 2, kTinyEpsilon);
  for (Eigen::Index h : {0, 1}) {
    const Matrix<double> part = rows.middleCols(3 * h, 3);
    const Vector<double> part_weight = weight.segment(3 * h, 3);
    const Matrix<double> alone = rms_norm<double>(part, part_weight, 1, kTinyEpsilon);
    EXPECT_TRUE(bit_equal(normed.middleCols(3 * h, 3), alone));
  }
  EXPECT_GT(relative_error(rms_norm<double>(rows, weight, 1, kTinyEpsilon), normed), kClearlyWrong);
}

TEST(RmsNorm, AWeightOfOneHeadIsSharedByAll) {
  const Matrix<double> rows = random_matrix(4, 6, 5);
  const Vector<double> shared = random_matrix(3, 1, 6);
  EXPECT_TRUE(bit_equal(rms_norm<double>(rows, shared, 2, 1e-5),
                        rms_norm<double>(rows, shared.replicate(2, 1).eval(), 2, 1e-5)));
}

TEST(RmsNorm, ARowOfZerosStaysZero) {
  EXPECT_EQ(rms_norm<double>(Matrix<double>::Zero(2, 4), Vector<double>::Ones(4), 2, 1e-6),
            (Matrix<double>::Zero(2, 4)));
}

TEST(RmsNorm, RefusesAWeightOfAnotherSizeAndHeadsThatDoNotDivideTheWidth) {
  const Matrix<double> rows = Matrix<double>::Ones(2, 6);
  EXPECT_THROW(rms_norm<double>(rows, Vector<double>::Ones(4), 2, 1e-6), std::invalid_argument);
  EXPECT_THROW(rms_norm<double>(rows, Vector<double>::Ones(6), 4, 1e-6), std::invalid_argument);
  EXPECT_THROW(rms_norm<double>(rows, Vector<double>::Ones(6), 0, 1e-6), std::invalid_argument);
}

}  // namespace
}  // namespace lethe::reference::layers
