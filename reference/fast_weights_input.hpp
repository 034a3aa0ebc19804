#pragma once
// Checks and access that the fast-weight rules share. Included by the rules' .cpp files alone.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "reference/biased_softmax.hpp"
#include "reference/head.hpp"

namespace lethe::reference {

/// throws  std::invalid_argument where `gate` is neither empty nor a log gate of `rows` × `columns` values ≤ 0
template <typename Gate>
void expect_log_gate(const char* name, const Gate& gate, Eigen::Index rows, Eigen::Index columns) {
  if (gate.size() == 0) return;
  expect_size(name, "rows, one a key", rows, gate.rows());
  expect_size(name, "columns", columns, gate.cols());
  if (!(gate.array() <= 0).all()) {
    throw std::invalid_argument(std::string(name) + ": expected values <= 0, found a positive one or NaN");
  }
}

/// throws  std::invalid_argument where query, key, value and initial_state don't match, or there is no key
template <typename Scalar>
void check_state_shapes(const BasicHead<Scalar>& head) {
  check_shapes(head);
  if (head.key.rows() == 0) throw std::invalid_argument("key: expected at least 1 row, found 0");
  if (head.initial_state.size() == 0) return;
  expect_size("initial_state", "rows, one a column of key", head.key.cols(), head.initial_state.rows());
  expect_size("initial_state", "columns, as value has", head.value.cols(), head.initial_state.cols());
}

/// throws  std::invalid_argument where chunk_length < 1: a chunk holds at least one position
inline void expect_chunk_length(Eigen::Index chunk_length) {
  if (chunk_length >= 1) return;
  throw std::invalid_argument("chunk_length: expected >= 1, found " + std::to_string(chunk_length));
}

/// throws  std::invalid_argument where the gradients don't have the shapes of what a form returns; an empty
///         state_gradient is zeros
template <typename Scalar>
void check_output_gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                            const Matrix<Scalar>& state_gradient) {
  expect_size("values_gradient", "rows, as query has", head.query.rows(), values_gradient.rows());
  expect_size("values_gradient", "columns, as value has", head.value.cols(), values_gradient.cols());
  if (state_gradient.size() == 0) return;
  expect_size("state_gradient", "rows, one a column of key", head.key.cols(), state_gradient.rows());
  expect_size("state_gradient", "columns, as value has", head.value.cols(), state_gradient.cols());
}

/// `state` [K,V], or zeros where it is empty.
template <typename Scalar>
Matrix<Scalar> state_or_zeros(const Matrix<Scalar>& state, const BasicHead<Scalar>& head) {
  return state.size() == 0 ? Matrix<Scalar>::Zero(head.key.cols(), head.value.cols()) : state;
}

/// Row t of the gate itself, [1,columns]; ones where there is no gate.
template <typename Scalar>
Eigen::Array<Scalar, 1, Eigen::Dynamic> gate_at(const Matrix<Scalar>& log_gate, Eigen::Index t, Eigen::Index columns) {
  if (log_gate.size() == 0) return Eigen::Array<Scalar, 1, Eigen::Dynamic>::Ones(columns);
  return exponential(log_gate.row(t)).array();
}

/// The queries at the `length` positions from `start` on: their first row, their number, and the first one's place in the
/// chunk.
struct QueryRows {
  Eigen::Index row, rows, first;
};
template <typename Scalar>
QueryRows queries_in(const BasicHead<Scalar>& head, Eigen::Index start, Eigen::Index length) {
  const Eigen::Index before = position_of(head, 0);  // positions without a query
  const Eigen::Index first = std::clamp(before - start, Eigen::Index{0}, length);
  return {.row = std::max(start - before, Eigen::Index{0}), .rows = length - first, .first = first};
}

}  // namespace lethe::reference
