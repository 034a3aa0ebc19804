#pragma once
// One (batch, head) slice of a problem: what the equations speak about. Here Eigen begins.

#include <Eigen/Core>

#include "reference/problem.hpp"

namespace lethe {

template <typename Scalar>
using Matrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename Scalar>
using Vector = Eigen::Matrix<Scalar, Eigen::Dynamic, 1>;

/// One head's input; each variant lists what it reads, and the rest may be empty. Rows of `query` are at the last
/// query.rows() positions of the keys, so with P = key.rows() − query.rows(), query row i is position P + i.
///
/// The gates of position t act on the state before position t is written: gate, write, read. The softmax family has no
/// state; there entry 0 of log_forget is in no sum (D_ij sums l > j), while elsewhere it fades the initial state.
template <typename Scalar>
struct BasicHead {
  Matrix<Scalar> query;       ///< [Tq, K]
  Matrix<Scalar> key;         ///< [Tk, K]
  Matrix<Scalar> value;       ///< [Tk, V]
  Vector<Scalar> log_forget;  ///< [Tk], natural log, ≤ 0: one gate for all of the state
  Scalar scale = Scalar(1);   ///< of q·k

  Matrix<Scalar> log_key_gate{};        ///< [Tk, K], natural log, ≤ 0: one gate a row of the state
  Matrix<Scalar> log_value_gate{};      ///< [Tk, V], natural log, ≤ 0: one gate a column of the state
  Vector<Scalar> write_strength{};      ///< [Tk], ≥ 0
  Matrix<Scalar> initial_state{};       ///< [K, V] before the first key; 0×0 is zeros
  Vector<Scalar> initial_normalizer{};  ///< [K] before the first key; empty is zeros
};
using Head = BasicHead<double>;

/// What every form returns.
template <typename Scalar>
struct BasicOutput {
  Matrix<Scalar> values{};          ///< [Tq, V]
  Matrix<Scalar> state{};           ///< [K, V] after the last key; 0×0 where the whole past is needed
  Vector<Scalar> log_normalizer{};  ///< [Tq] = log Σ_j exp(logit_ij) with D_ii = 0; empty outside the softmax family
  Vector<Scalar> normalizer{};  ///< [K] after the last key, where a variant with a state normalises; empty elsewhere
};
using Output = BasicOutput<double>;

/// ∂loss/∂input of every input that the variant reads, shaped as in BasicHead; empty for the others.
template <typename Scalar>
struct BasicGradients {
  Matrix<Scalar> query, key, value;
  Vector<Scalar> log_forget;
  Matrix<Scalar> log_key_gate{}, log_value_gate{};
  Vector<Scalar> write_strength{};
  Matrix<Scalar> initial_state{};
  Vector<Scalar> initial_normalizer{};
};
using Gradients = BasicGradients<double>;

/// The slice of `problem` that query head `query_head` of batch entry `batch` reads; the key head is
/// query_head / (query_heads / heads). A problem holds inputs of the softmax family: the other fields stay empty.
///
/// throws  std::out_of_range where batch or query_head is outside the shape
Head head_of(const Problem& problem, int64_t batch, int64_t query_head);

}  // namespace lethe
