#pragma once
// Attention as the lesson writes it, in plain sums over plain numbers: what the reference is compared with.

#include <cmath>
#include <limits>

#include "reference/forgetting_attention.hpp"
#include "tests/support/matrices.hpp"

namespace lethe::lesson {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// F_ij = Π_{j < l ≤ i} f_l for j ≤ i, zero above the diagonal.
inline Matrix<double> keep_masses(const Vector<double>& log_forget) {
  const Eigen::Index length = log_forget.size();
  Matrix<double> mass = Matrix<double>::Zero(length, length);
  for (Eigen::Index i = 0; i < length; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) {
      mass(i, j) = 1.0;
      for (Eigen::Index l = j + 1; l <= i; ++l) mass(i, j) *= std::exp(log_forget[l]);
    }
  }
  return mass;
}

/// Σ_j F_ij exp(scale q_i·k_j) v_j / Σ_j F_ij exp(scale q_i·k_j) with any factors F in the place of keep masses.
inline Matrix<double> ratio_form(const Head& head, const Matrix<double>& factors) {
  const Matrix<double> weights = factors.array() * (head.scale * head.query * head.key.transpose()).array().exp();
  return weights.rowwise().sum().cwiseInverse().asDiagonal() * (weights * head.value);
}

/// P_ij, the attention weights, read off by attending to the rows of an identity matrix.
inline Matrix<double> attention_weights(Head head) {
  head.value = Matrix<double>::Identity(head.key.rows(), head.key.rows());
  return reference::forgetting_attention::parallel(head).values;
}

/// A head whose logits are the given numbers [T, T].
inline Head head_of_logits(const Matrix<double>& logits, const Vector<double>& log_forget) {
  const Eigen::Index length = logits.rows();
  const Matrix<double> identity = Matrix<double>::Identity(length, length);
  return {identity, logits.transpose(), identity, log_forget, 1.0};
}

}  // namespace lethe::lesson
