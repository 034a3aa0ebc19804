#pragma once
// One (batch, head) slice of a problem: what the equations speak about. Here Eigen begins.

#include <Eigen/Core>

#include "reference/problem.hpp"

namespace lethe {

template <typename Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename Scalar>
using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

/// One head's input. Rows of `query` stand at the last query.rows() positions of the keys, so with P = key.rows() −
/// query.rows(), query row i is position P + i.
template <typename Scalar>
struct BasicHead {
  Matrix<Scalar> query;       ///< [Tq, K]
  Matrix<Scalar> key;         ///< [Tk, K]
  Matrix<Scalar> value;       ///< [Tk, V]
  Vector<Scalar> log_forget;  ///< [Tk], natural log, ≤ 0; entry 0 is never used by the softmax family (D_ij sums l > j)
  Scalar scale = Scalar(1);   ///< of q·k
};
using Head = BasicHead<double>;

/// What every form returns.
template <typename Scalar>
struct BasicOutput {
  Matrix<Scalar> values;          ///< [Tq, V]
  Matrix<Scalar> state;           ///< [K, V]; 0×0 where the whole past is needed
  Vector<Scalar> log_normalizer;  ///< [Tq] = log Σ_j exp(logit_ij) with D_ii = 0; empty outside the softmax family
};
using Output = BasicOutput<double>;

/// ∂loss/∂input of every input, for a loss with the given ∂loss/∂values.
template <typename Scalar>
struct BasicGradients {
  Matrix<Scalar> query, key, value;  ///< as in BasicHead
  Vector<Scalar> log_forget;         ///< [Tk]
};
using Gradients = BasicGradients<double>;

/// The slice of `problem` that query head `query_head` of batch entry `batch` reads; the key head is
/// query_head / (query_heads / heads).
///
/// throws  std::out_of_range where batch or query_head is outside the shape
Head head_of(const Problem& problem, int64_t batch, int64_t query_head);

}  // namespace lethe
