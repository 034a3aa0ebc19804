#include "reference/layers/kv_shift.hpp"

#include <cmath>

#include "tests/support/matrices.hpp"

namespace lethe::reference::layers {
namespace {

Matrix<double> random_mix(Eigen::Index rows, Eigen::Index heads, uint64_t seed) {
  return random_matrix(rows, heads, seed).unaryExpr([](double x) { return 0.5 + 0.5 * std::tanh(x); });
}

TEST(KvShift, MixesATokenWithTheOneBeforeItAndTheFirstWithZero) {
  const Matrix<double> projected{{4, 8}, {12, 16}, {20, 24}};
  const Matrix<double> mix{{0.25, 0.5}, {0.25, 0.5}, {1.0, 0.0}};
  const Matrix<double> expected{{3, 4}, {10, 12}, {12, 24}};
  EXPECT_EQ(kv_shift<double>(projected, mix, Vector<double>::Zero(2)), expected);
}

TEST(KvShift, WithoutMixIsTheIdentity) {
  const Matrix<double> projected = random_matrix(7, 6, 1);
  EXPECT_TRUE(bit_equal(kv_shift<double>(projected, Matrix<double>::Zero(7, 2), Vector<double>::Zero(6)), projected));
}

TEST(KvShift, AHeadOfSeveralDimensionsHasOneMix) {
  const Matrix<double> projected = random_matrix(5, 6, 2);
  const Matrix<double> mix = random_mix(5, 2, 3);
  const Matrix<double> each_dimension = mix.col(0).replicate(1, 3);
  const Matrix<double> first_head = kv_shift<double>(projected.leftCols(3), each_dimension, Vector<double>::Zero(3));
  EXPECT_TRUE(bit_equal(kv_shift<double>(projected, mix, Vector<double>::Zero(6)).leftCols(3), first_head));
}

TEST(KvShift, ContinuesAnywhereFromTheLastUnmixedRow) {
  const Matrix<double> projected = random_matrix(7, 4, 4);
  const Matrix<double> mix = random_mix(7, 2, 5);
  const Matrix<double> whole = kv_shift<double>(projected, mix, Vector<double>::Zero(4));
  for (Eigen::Index split = 1; split < 7; ++split) {
    const auto continued_from = [&](const Vector<double>& previous) {
      return kv_shift<double>(projected.bottomRows(7 - split), mix.bottomRows(7 - split), previous);
    };
    EXPECT_TRUE(bit_equal(continued_from(projected.row(split - 1)), whole.bottomRows(7 - split)));
    EXPECT_GT(relative_error(continued_from(whole.row(split - 1)), whole.bottomRows(7 - split)), kClearlyWrong)
        << "the mixed row in the place of the unmixed one";
    EXPECT_GT(relative_error(continued_from(Vector<double>::Zero(4)), whole.bottomRows(7 - split)), kClearlyWrong)
        << "a cache that starts from zero";
  }
}

TEST(KvShift, RefusesShapesThatDoNotMatch) {
  const Matrix<double> projected = Matrix<double>::Ones(3, 4);
  EXPECT_THROW(kv_shift<double>(projected, Matrix<double>::Zero(2, 2), Vector<double>::Zero(4)), std::invalid_argument);
  EXPECT_THROW(kv_shift<double>(projected, Matrix<double>::Zero(3, 3), Vector<double>::Zero(4)), std::invalid_argument);
  EXPECT_THROW(kv_shift<double>(projected, Matrix<double>::Zero(3, 2), Vector<double>::Zero(2)), std::invalid_argument);
}

}  // namespace
}  // namespace lethe::reference::layers
