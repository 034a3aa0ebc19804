#pragma once
// The formulas in double, but with P and dS in 16 bits wherever a tensor core multiplies them: what that storage alone costs. Where a
// head's gradient hangs on a few small differences dS, that can be more than the budget, and no kernel can do better.

#include <cmath>
#include <vector>

#include "reference/head.hpp"

namespace lethe::testing {

inline Gradients rounded_gradients(const Head& head, const Matrix<double>& grad_values, Dtype dtype) {
  const Eigen::Index queries = head.query.rows(), keys = head.key.rows(), offset = keys - queries;
  const auto round = [dtype](double value) { return round_to(dtype, value); };
  Gradients result{Matrix<double>::Zero(queries, head.query.cols()), Matrix<double>::Zero(keys, head.key.cols()),
                   Matrix<double>::Zero(keys, head.value.cols()), Vector<double>::Zero(keys)};
  for (Eigen::Index i = 0; i < queries; ++i) {
    const Eigen::Index visible = offset + i + 1;
    Vector<double> weight = head.scale * (head.key.topRows(visible) * head.query.row(i).transpose());
    double decay = 0;
    for (Eigen::Index j = visible - 1; j >= 0; --j) {
      weight[j] += decay;
      decay += head.log_forget[j];
    }
    weight = (weight.array() - weight.maxCoeff()).exp();
    const Vector<double> values = head.value.topRows(visible).transpose() * weight.unaryExpr(round) / weight.sum();
    weight /= weight.sum();
    const Vector<double> rounded = weight.unaryExpr(round);
    const Vector<double> grad_weight = head.value.topRows(visible) * grad_values.row(i).transpose();
    const Vector<double> grad_score =
        (rounded.array() * (grad_weight.array() - grad_values.row(i).dot(values))).unaryExpr(round);
    result.query.row(i) = head.scale * grad_score.transpose() * head.key.topRows(visible);
    result.key.topRows(visible) += head.scale * grad_score * head.query.row(i);
    result.value.topRows(visible) += rounded * grad_values.row(i);
    result.log_forget[offset + i] += grad_score.sum();
    result.log_forget.head(visible) -= grad_score;
  }
  for (Eigen::Index l = keys - 1; l-- > 0;) result.log_forget[l] += result.log_forget[l + 1];
  for (Eigen::Index l = 0; l < keys; ++l)
    if (l == 0 || std::isinf(head.log_forget[l])) result.log_forget[l] = 0;
  return result;
}

}  // namespace lethe::testing
