#pragma once
// The logistic function of every gate, and its logarithm.

#include <algorithm>
#include <cmath>

#include "reference/head.hpp"

namespace lethe::reference::layers {

/// σ(x) = 1 / (1 + exp(−x)), entry by entry. Nothing overflows to NaN: exp(−x) = ∞ gives 0.
template <typename Scalar>
Matrix<Scalar> sigmoid(const Matrix<Scalar>& logits) {
  return logits.unaryExpr([](Scalar x) { return 1 / (1 + std::exp(-x)); });
}

/// log σ(x) = min(x, 0) − log(1 + exp(−|x|)), entry by entry: finite and exact to rounding where σ itself is 0 or 1.
///
/// source  the logarithm of Forgetting Transformer, Eq. 21
template <typename Scalar>
Matrix<Scalar> log_sigmoid(const Matrix<Scalar>& logits) {
  return logits.unaryExpr([](Scalar x) { return std::min(x, Scalar(0)) - std::log1p(std::exp(-std::abs(x))); });
}

}  // namespace lethe::reference::layers
