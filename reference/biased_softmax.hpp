#pragma once
// What the softmax family shares: attention whose logits carry a bias that depends on the two positions. Each member
// defines its bias and nothing else. Included by the family's .cpp files alone; the members' headers are the interface.
//
//   S_ij = scale · q_i·k_j + D_ij,  j ≤ i        P_ij = exp(S_ij) / Σ_j exp(S_ij)        o_i = Σ_j P_ij v_j
//
// A bias comes in two ways: `bias(i, j)` gives D_ij, and `step(j)` gives D_{i,j−1} − D_ij, which depends on j alone in
// every member of the family.

#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/compensated_sum.hpp"
#include "reference/expect.hpp"
#include "reference/head.hpp"

namespace lethe::reference {

/// Position of query row `row`: queries are at the end of the keys.
template <typename Scalar>
Eigen::Index position_of(const BasicHead<Scalar>& head, Eigen::Index row) {
  return head.key.rows() - head.query.rows() + row;
}

/// exp of every entry. Eigen's own vectorised exp stops at exp(−708), where a cut pair must weigh exactly nothing.
template <typename Expression>
auto exponential(const Expression& expression) {
  using Scalar = typename Expression::Scalar;
  return expression.unaryExpr([](Scalar x) { return std::exp(x); });
}

/// throws  std::invalid_argument where the shapes of query, key and value don't match
template <typename Scalar>
void check_shapes(const BasicHead<Scalar>& head) {
  expect_size("key", "columns, as query has", head.query.cols(), head.key.cols());
  expect_size("value", "rows, as key has", head.key.rows(), head.value.rows());
  if (head.query.rows() > head.key.rows()) {
    throw std::invalid_argument("query: expected at most " + std::to_string(head.key.rows()) +
                                " rows, as key has, found " + std::to_string(head.query.rows()));
  }
}

/// A softmax-weighted average of rows that arrive one at a time. It keeps the largest logit so far and rescales its sums
/// where a larger one arrives, so that nothing overflows. Every sum is compensated: exact to about 1e-14 at any length.
template <typename Scalar>
class OnlineSoftmax {
 public:
  explicit OnlineSoftmax(Eigen::Index columns) : weighted_(columns) {}

  template <typename Row>
  void add(Scalar logit, const Row& row) {
    if (logit > largest_) {
      const Scalar rescale = std::exp(largest_ - logit);
      normalizer_.scale(rescale);
      for (auto& sum : weighted_) sum.scale(rescale);
      largest_ = logit;
    }
    const Scalar weight = std::exp(logit - largest_);
    normalizer_.add(weight);
    for (std::size_t column = 0; column < weighted_.size(); ++column) weighted_[column].add(weight * row(column));
  }

  Matrix<Scalar> average() const {  // [1, columns]
    Matrix<Scalar> row(1, weighted_.size());
    for (std::size_t column = 0; column < weighted_.size(); ++column)
      row(0, column) = weighted_[column].value() / normalizer_.value();
    return row;
  }
  Scalar log_normalizer() const { return largest_ + std::log(normalizer_.value()); }

 private:
  Scalar largest_ = -std::numeric_limits<Scalar>::infinity();
  CompensatedSum<Scalar> normalizer_;
  std::vector<CompensatedSum<Scalar>> weighted_;
};

/// One query: its keys are taken one at a time, from its own position back to the first.
///
/// reads    row: of head.query
/// returns  one row of values, one log_normalizer
/// cost     O(T(K+V)) time, O(V) extra memory
template <typename Scalar, typename Step>
BasicOutput<Scalar> biased_softmax_one_query(const BasicHead<Scalar>& head, const Step& step, Eigen::Index row) {
  constexpr Scalar kInfinity = std::numeric_limits<Scalar>::infinity();
  if (row < 0 || row >= head.query.rows()) {
    throw std::invalid_argument("row: expected 0 <= row < " + std::to_string(head.query.rows()) + ", found " +
                                std::to_string(row));
  }
  OnlineSoftmax<Scalar> softmax(head.value.cols());
  CompensatedSum<Scalar> decay;
  // [recurrent]
  for (Eigen::Index j = position_of(head, row); j >= 0; --j) {
    const Scalar logit = head.scale * head.query.row(row).dot(head.key.row(j)) + decay.value();
    softmax.add(logit, head.value.row(j));
    if (j == 0 || step(j) == -kInfinity) break;  // a gate of zero: nothing before position j is remembered
    decay.add(step(j));
  }
  // [/recurrent]
  BasicOutput<Scalar> output{.values = softmax.average()};
  output.log_normalizer.setConstant(1, softmax.log_normalizer());
  return output;
}

/// Every query by biased_softmax_one_query.
///
/// returns  values [Tq,V]; log_normalizer [Tq]
/// cost     O(Tq Tk (K+V)) time, O(V) extra memory
template <typename Scalar, typename Step>
BasicOutput<Scalar> biased_softmax_recurrent(const BasicHead<Scalar>& head, const Step& step) {
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  for (Eigen::Index row = 0; row < head.query.rows(); ++row) {
    const BasicOutput<Scalar> one = biased_softmax_one_query(head, step, row);
    output.values.row(row) = one.values.row(0);
    output.log_normalizer[row] = one.log_normalizer[0];
  }
  return output;
}

/// All queries at once: softmax(scale · Q Kᵀ + D) V.
template <typename Scalar, typename Bias>
BasicOutput<Scalar> biased_softmax_parallel(const BasicHead<Scalar>& head, const Bias& bias) {
  BasicOutput<Scalar> output;
  // [parallel]
  Matrix<Scalar> logits = head.scale * head.query * head.key.transpose();  // [Tq, Tk]
  for (Eigen::Index row = 0; row < logits.rows(); ++row) {
    const Eigen::Index i = position_of(head, row);
    for (Eigen::Index j = 0; j <= i; ++j) logits(row, j) += bias(i, j);
    logits.row(row).tail(logits.cols() - i - 1).setConstant(-std::numeric_limits<Scalar>::infinity());
  }
  const Vector<Scalar> largest = logits.rowwise().maxCoeff();
  const Matrix<Scalar> weights = exponential(logits.colwise() - largest);
  const Vector<Scalar> normalizer = weights.rowwise().sum();
  output.values = normalizer.cwiseInverse().asDiagonal() * (weights * head.value);
  // [/parallel]
  output.log_normalizer = largest.array() + normalizer.array().log();
  return output;
}

/// P_ij of one query row, j = 0 … its position.
template <typename Scalar, typename Bias>
Vector<Scalar> biased_softmax_weights(const BasicHead<Scalar>& head, const Bias& bias, Eigen::Index row) {
  const Eigen::Index i = position_of(head, row);
  Vector<Scalar> logits = head.scale * head.key.topRows(i + 1) * head.query.row(row).transpose();
  for (Eigen::Index j = 0; j <= i; ++j) logits[j] += bias(i, j);
  const Vector<Scalar> weights = exponential((logits.array() - logits.maxCoeff()).matrix());
  return weights / weights.sum();
}

/// The gradients of all four inputs, a query row at a time.
///
///   dP_ij = do_i·v_j        dS_ij = P_ij (dP_ij − Σ_j P_ij dP_ij)
///   dv_j = Σ_i P_ij do_i    dq_i = scale Σ_j dS_ij k_j    dk_j = scale Σ_i dS_ij q_i
///   dlog f_l = Σ_{i ≥ l > j} dS_ij,  which is 0 for l = 0
///
/// A row's dS sums to zero, so Σ_{j < l} is accumulated from the oldest key on: there the terms are small and of similar
/// size, and nothing large has to cancel.
///
/// returns  log_forget as if D came from a forget gate; a member without one drops it
/// cost     O(T²(K+V)) time, O(T) extra memory
template <typename Scalar, typename Bias>
BasicGradients<Scalar> biased_softmax_gradients(const BasicHead<Scalar>& head, const Bias& bias,
                                                const Matrix<Scalar>& values_gradient) {
  expect_size("values_gradient", "rows, as query has", head.query.rows(), values_gradient.rows());
  expect_size("values_gradient", "columns, as value has", head.value.cols(), values_gradient.cols());
  BasicGradients<Scalar> gradients;
  gradients.query.setZero(head.query.rows(), head.query.cols());
  gradients.key.setZero(head.key.rows(), head.key.cols());
  gradients.value.setZero(head.value.rows(), head.value.cols());
  gradients.log_forget.setZero(head.key.rows());
  for (Eigen::Index row = 0; row < head.query.rows(); ++row) {
    const Eigen::Index past = position_of(head, row) + 1;  // keys that this query sees
    const Vector<Scalar> weights = biased_softmax_weights(head, bias, row);
    const Vector<Scalar> weights_gradient = head.value.topRows(past) * values_gradient.row(row).transpose();
    const Vector<Scalar> logits_gradient = weights.array() * (weights_gradient.array() - weights.dot(weights_gradient));
    gradients.value.topRows(past) += weights * values_gradient.row(row);
    gradients.query.row(row) = head.scale * logits_gradient.transpose() * head.key.topRows(past);
    gradients.key.topRows(past) += head.scale * logits_gradient * head.query.row(row);
    Scalar older = 0;  // Σ_{j < l} dS_ij
    for (Eigen::Index l = 1; l < past; ++l) gradients.log_forget[l] += older += logits_gradient[l - 1];
  }
  return gradients;
}

}  // namespace lethe::reference
