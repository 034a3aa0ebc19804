#pragma once
// The formulas in double, but with P and dS in 16 bits wherever a tensor core multiplies them: the error of that storage alone. Where a head's
// gradient is the sum of a few small differences dS, that can be more than the budget, and no kernel can do better.

#include <cmath>

#include "reference/forgetting_attention.hpp"
#include "reference/head.hpp"

namespace lethe::testing {

using reference::forgetting_attention::Sight;

/// Row i: e^{logit_ij − max_j logit_ij} of the keys it sees, 0 of the others, and their sum. logit_ij = scale·q_i·k_j + Σ_{j < l ≤ i} log f_l.
struct Exponentials {
  Matrix<double> of_logits;  ///< [Tq, Tk]
  Vector<double> sums;       ///< [Tq]

  explicit Exponentials(const Head& head, const Sight& sight = {})
      : of_logits(head.scale * head.query * head.key.transpose()), sums(head.query.rows()) {
    const Eigen::Index keys = head.key.rows(), offset = keys - head.query.rows();
    for (Eigen::Index i = 0; i < sums.size(); ++i) {
      const Eigen::Index first = sight.first_key(offset + i), visible = offset + i + 1;
      double decay = 0;
      for (Eigen::Index j = visible - 1; j >= first; --j) {
        of_logits(i, j) += decay;
        decay += head.log_forget[j];
      }
      auto row = of_logits.row(i).segment(first, visible - first);
      row = (row.array() - row.maxCoeff()).exp();
      of_logits.row(i).head(first).setZero();
      of_logits.row(i).tail(keys - visible).setZero();
      sums[i] = row.sum();
    }
  }
  Matrix<double> weights() const { return sums.cwiseInverse().asDiagonal() * of_logits; }
};

inline Matrix<double> rounded(const Matrix<double>& numbers, Dtype dtype) {
  return numbers.unaryExpr([dtype](double number) { return round_to(dtype, number); });
}

/// dP − Δ [Tq, Tk], Δ_i = dO_i·o_i of values whose exponentials were rounded: dS is P times it.
inline Matrix<double> grad_weights(const Head& head, const Matrix<double>& grad_values,
                                   const Exponentials& exponentials, Dtype dtype) {
  const Matrix<double> values =
      exponentials.sums.cwiseInverse().asDiagonal() * (rounded(exponentials.of_logits, dtype) * head.value);
  const Vector<double> delta = grad_values.cwiseProduct(values).rowwise().sum();
  return (grad_values * head.value.transpose()).colwise() - delta;
}

inline Gradients rounded_gradients(const Head& head, const Matrix<double>& grad_values, Dtype dtype,
                                   const Sight& sight = {}) {
  const Eigen::Index queries = head.query.rows(), keys = head.key.rows();
  const Exponentials exponentials(head, sight);
  const Matrix<double> weights = rounded(exponentials.weights(), dtype);
  const Matrix<double> grad_logits =
      rounded(weights.cwiseProduct(grad_weights(head, grad_values, exponentials, dtype)), dtype);
  Vector<double> log_forget = -grad_logits.colwise().sum().transpose();
  log_forget.tail(queries) += grad_logits.rowwise().sum();
  for (Eigen::Index l = keys - 1; l-- > 0;) log_forget[l] += log_forget[l + 1];
  for (Eigen::Index l = 0; l < keys; ++l)
    if (l == 0 || std::isinf(head.log_forget[l])) log_forget[l] = 0;
  return {head.scale * grad_logits * head.key, head.scale * grad_logits.transpose() * head.query,
          weights.transpose() * grad_values, log_forget};
}

}  // namespace lethe::testing
