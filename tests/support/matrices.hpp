#pragma once
// Random inputs and comparisons of whole matrices, for tests of the reference.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>

#include "reference/agreement.hpp"
#include "reference/head.hpp"

namespace lethe {

/// Entries ~ N(0, 1); the same seed gives the same matrix.
inline Matrix<double> random_matrix(Eigen::Index rows, Eigen::Index columns, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  return Matrix<double>::NullaryExpr(rows, columns, [&] { return normal(generator); });
}

/// One head of random_problem, as many queries as keys.
inline Head random_head(int64_t length, int64_t key_dim, int64_t value_dim, Gate gate, uint64_t seed) {
  const Shape shape{.query_length = length, .key_length = length, .key_dim = key_dim, .value_dim = value_dim};
  return head_of(random_problem(shape, Dtype::kFloat64, gate, seed), 0, 0);
}

/// ‖actual − expected‖ / ‖expected‖; +inf where the shapes differ or either holds a NaN.
inline double relative_error(const Matrix<double>& actual, const Matrix<double>& expected) {
  if (actual.rows() != expected.rows() || actual.cols() != expected.cols()) {
    return std::numeric_limits<double>::infinity();
  }
  return compare(std::span(actual.data(), actual.size()), std::span(expected.data(), expected.size()), 1.0).error;
}

/// Same shape, same bits.
inline bool bit_equal(const Matrix<double>& a, const Matrix<double>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), sizeof(double) * a.size()) == 0);
}

/// Rounding of a few hundred double operations.
inline constexpr double kExact = 1e-12;

/// The least error of a formula that should be wrong, so that a control cannot pass by rounding.
inline constexpr double kClearlyWrong = 1e-3;

}  // namespace lethe
