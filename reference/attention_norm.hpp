#pragma once
// What linear attention with and without a gate ask of a normalizer. Included by their .cpp files alone.

#include "reference/fast_weights_input.hpp"
#include "reference/linear_attention.hpp"

namespace lethe::reference {

/// throws  as check_state_shapes, and std::invalid_argument where a normalizer is read and does not fit
template <typename Scalar>
void check_linear(const BasicHead<Scalar>& head, Normalized normalized) {
  check_state_shapes(head);
  if (normalized == Normalized::kNo || head.initial_normalizer.size() == 0) return;
  expect_size("initial_normalizer", "entries, one a column of key", head.key.cols(), head.initial_normalizer.size());
}

/// z_0 where the variant normalizes, else empty.
template <typename Scalar>
Vector<Scalar> initial_normalizer_of(const BasicHead<Scalar>& head, Normalized normalized) {
  if (normalized == Normalized::kNo) return {};
  return head.initial_normalizer.size() == 0 ? Vector<Scalar>::Zero(head.key.cols()) : head.initial_normalizer;
}

/// throws  std::invalid_argument where no weight at all lies on the past of query row `row`
template <typename Scalar>
Scalar expect_weight(Scalar weight, Eigen::Index row) {
  if (weight != 0) return weight;
  throw std::invalid_argument("normalizer: expected z·q other than 0 for every query, found 0 in row " +
                              std::to_string(row));
}

/// Each row of `values` divided by its weight.
template <typename Scalar>
void divide_rows(Matrix<Scalar>& values, const Vector<Scalar>& weights) {
  for (Eigen::Index row = 0; row < values.rows(); ++row) values.row(row) /= expect_weight(weights[row], row);
}

/// `scores` [Tq,Tk] without the keys that a query does not see.
template <typename Scalar>
Matrix<Scalar> causal(Matrix<Scalar> scores) {
  const Eigen::Index before = scores.cols() - scores.rows();  // positions without a query
  for (Eigen::Index row = 0; row < scores.rows(); ++row)
    scores.row(row).tail(scores.cols() - 1 - before - row).setZero();
  return scores;
}

}  // namespace lethe::reference
