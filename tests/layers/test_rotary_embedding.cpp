#include "reference/layers/rotary_embedding.hpp"

#include <cmath>

#include "tests/support/matrices.hpp"

namespace lethe::reference::layers {
namespace {

TEST(RotaryEmbedding, TurnsTheTwoHalvesOfAHeadAgainstEachOther) {
  const Matrix<double> rows{{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}};
  // Base 16: dimensions (0, 2) turn by 1 a position, (1, 3) by 1/4.
  const double c1 = std::cos(2.0), s1 = std::sin(2.0), c2 = std::cos(0.5), s2 = std::sin(0.5);
  const Matrix<double> at_two{{1 * c1 - 3 * s1, 2 * c2 - 4 * s2, 1 * s1 + 3 * c1, 2 * s2 + 4 * c2}};
  const Matrix<double> rotated = rotary_embedding<double>(rows, 1, 16.0);
  EXPECT_TRUE(bit_equal(rotated.row(0), rows.row(0)));
  EXPECT_LT(relative_error(rotated.row(2), at_two), kExact);
}

TEST(RotaryEmbedding, ProductsOfQueryAndKeyDependOnTheirDistanceAlone) {
  const Matrix<double> query = random_matrix(6, 8, 1);
  const Matrix<double> key = random_matrix(6, 8, 2);
  const auto products = [&](Eigen::Index query_start, Eigen::Index key_start) -> Matrix<double> {
    return rotary_embedding<double>(query, 1, 500000.0, query_start) *
           rotary_embedding<double>(key, 1, 500000.0, key_start).transpose();
  };
  EXPECT_LT(relative_error(products(1000, 1000), products(0, 0)), kExact);
  EXPECT_GT(relative_error(products(1, 0), products(0, 0)), kClearlyWrong);
}

TEST(RotaryEmbedding, KeepsTheLengthOfEveryHeadsVector) {
  const Matrix<double> rows = random_matrix(9, 6, 3);
  const Matrix<double> rotated = rotary_embedding<double>(rows, 1, 10000.0);
  EXPECT_LT(relative_error(rotated.rowwise().norm(), rows.rowwise().norm()), kExact);
}

TEST(RotaryEmbedding, TurnsEveryHeadAlike) {
  const Matrix<double> rows = random_matrix(5, 8, 4);
  const Matrix<double> rotated = rotary_embedding<double>(rows, 2, 10000.0);
  EXPECT_TRUE(bit_equal(rotated.rightCols(4), rotary_embedding<double>(rows.rightCols(4), 1, 10000.0)));
  EXPECT_GT(relative_error(rotary_embedding<double>(rows, 1, 10000.0), rotated), kClearlyWrong);
}

TEST(RotaryEmbedding, RefusesAnOddHeadDim) {
  EXPECT_THROW(rotary_embedding<double>(Matrix<double>::Ones(2, 6), 2, 10000.0), std::invalid_argument);
}

}  // namespace
}  // namespace lethe::reference::layers
