#pragma once
// The normalizer of linear attention, with and without a gate. Included by their .cpp files alone.

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

/// throws  std::invalid_argument where the weights of query row `row` sum to zero
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

/// The head whose values have one more column, of ones, and whose state has z_0 there: o = n / d with n and d side by side.
template <typename Scalar>
BasicHead<Scalar> with_normalizer_column(BasicHead<Scalar> head) {
  head.scale = 1;
  head.initial_state = state_or_zeros(head.initial_state, head);
  head.initial_state.conservativeResize(Eigen::NoChange, head.initial_state.cols() + 1);
  head.initial_state.rightCols(1) = initial_normalizer_of(head, Normalized::kYes);
  head.value.conservativeResize(Eigen::NoChange, head.value.cols() + 1);
  head.value.rightCols(1).setOnes();
  return head;
}

/// A form, normalized where asked: the unnormalized form on the head with the column of ones, divided by that column.
template <typename Scalar, typename Form>
BasicOutput<Scalar> normalized_form(const BasicHead<Scalar>& head, Normalized normalized, const Form& form) {
  if (normalized == Normalized::kNo) return form(head);
  const Eigen::Index value_dim = head.value.cols();
  const BasicOutput<Scalar> both = form(with_normalizer_column(head));
  BasicOutput<Scalar> output{.values = both.values.leftCols(value_dim),
                             .state = both.state.leftCols(value_dim),
                             .normalizer = both.state.rightCols(1)};
  divide_rows(output.values, Vector<Scalar>(both.values.rightCols(1)));
  return output;
}

/// `scores` [Tq,Tk] with zeros at the keys that a query does not see.
template <typename Scalar>
Matrix<Scalar> causal(Matrix<Scalar> scores) {
  const Eigen::Index before = scores.cols() - scores.rows();  // positions without a query
  for (Eigen::Index row = 0; row < scores.rows(); ++row)
    scores.row(row).tail(scores.cols() - 1 - before - row).setZero();
  return scores;
}

}  // namespace lethe::reference
