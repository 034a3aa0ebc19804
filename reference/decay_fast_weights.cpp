#include "reference/decay_fast_weights.hpp"

#include <vector>

#include "reference/compensated_sum.hpp"
#include "reference/fast_weights_input.hpp"
#include "reference/pair_decay.hpp"

namespace lethe::reference::decay_fast_weights {
namespace {

using Eigen::Index;

template <typename Scalar>
void check(const BasicHead<Scalar>& head) {
  check_state_shapes(head);
  expect_log_gate("log_key_gate", head.log_key_gate, head.key.rows(), head.key.cols());
  expect_log_gate("log_value_gate", head.log_value_gate, head.key.rows(), head.value.cols());
}

// diag(a_t) S diag(b_t)
template <typename Scalar>
Matrix<Scalar> gated(const BasicHead<Scalar>& head, const Matrix<Scalar>& state, Index t) {
  const auto key_gate = gate_at(head.log_key_gate, t, state.rows());
  const auto value_gate = gate_at(head.log_value_gate, t, state.cols());
  return (state.array().colwise() * key_gate.transpose()).rowwise() * value_gate;
}

template <typename Scalar>
Matrix<Scalar> rows_or_empty(const Matrix<Scalar>& matrix, Index start, Index rows) {
  return matrix.size() == 0 ? Matrix<Scalar>() : Matrix<Scalar>(matrix.middleRows(start, rows));
}

// The values of `length` positions from `start` on, into output.values, and the state after them, into output.state,
// which holds the state before them.
template <typename Scalar>
void advance(const BasicHead<Scalar>& head, Index start, Index length, Index block, BasicOutput<Scalar>& output) {
  const Matrix<Scalar> key = head.key.middleRows(start, length), value = head.value.middleRows(start, length);
  const PairDecay<Scalar> rows(rows_or_empty(head.log_key_gate, start, length), key.cols());
  const PairDecay<Scalar> columns(rows_or_empty(head.log_value_gate, start, length), value.cols());
  const QueryRows own = queries_in(head, start, length);
  const Matrix<Scalar> query = head.scale * head.query.middleRows(own.row, own.rows);
  const Matrix<Scalar> before = decayed_from_the_start(query, rows, own.first) * output.state;
  output.values.middleRows(own.row, own.rows) =
      decayed_from_the_start(before, columns, own.first) +
      decayed_sums(decayed_products(query, key, rows, own.first, block), value, columns, own.first, block);
  output.state = (output.state.array().colwise() * rows.between(length - 1, -1).transpose()).rowwise() *
                 columns.between(length - 1, -1);
  output.state.noalias() += decayed_to_the_end(key, rows).transpose() * decayed_to_the_end(value, columns);
}

template <typename Scalar>
BasicGradients<Scalar> zero_gradients(const BasicHead<Scalar>& head) {
  BasicGradients<Scalar> gradients;
  gradients.query.setZero(head.query.rows(), head.query.cols());
  gradients.key.setZero(head.key.rows(), head.key.cols());
  gradients.value.setZero(head.value.rows(), head.value.cols());
  gradients.log_key_gate.setZero(head.log_key_gate.rows(), head.log_key_gate.cols());
  gradients.log_value_gate.setZero(head.log_value_gate.rows(), head.log_value_gate.cols());
  return gradients;
}

// Running sums, one a dimension.
template <typename Scalar>
using Sums = std::vector<CompensatedSum<Scalar>>;

template <typename Row>
auto sums_from(const Row& start) {
  Sums<typename Row::Scalar> sums(start.size());
  for (Index d = 0; d < start.size(); ++d) sums[d].add(start[d]);
  return sums;
}

// sums += a ⊙ b − c ⊙ d
template <typename Scalar, typename A, typename B, typename C, typename D>
void add_difference(Sums<Scalar>& sums, const A& a, const B& b, const C& c, const D& d) {
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i].add(a[i] * b[i]);
    sums[i].add(-c[i] * d[i]);
  }
}

// Row t of a gate's gradient from its sums; where nothing passes the gate, the sums restart.
template <typename Scalar, typename Gate, typename Gradient>
void close_sums(Sums<Scalar>& sums, const Gate& gate, bool nothing_passes, Gradient&& gradient) {
  for (size_t d = 0; d < sums.size(); ++d) {
    if (nothing_passes || gate[d] == 0) sums[d] = {};
    gradient[d] = sums[d].value();
  }
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head) {
  check(head);
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  // [recurrent]
  for (Index t = 0, row = -position_of(head, 0); t < head.key.rows(); ++t, ++row) {
    output.state = gated(head, output.state, t) + head.key.row(t).transpose() * head.value.row(t);
    if (row >= 0) output.values.row(row).noalias() = head.scale * head.query.row(row) * output.state;
  }
  // [/recurrent]
  return output;
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head) {
  check(head);
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  advance(head, 0, head.key.rows(), head.key.rows(), output);
  return output;
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Index chunk_length) {
  check(head);
  expect_chunk_length(chunk_length);
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  for (Index start = 0; start < head.key.rows(); start += chunk_length) {
    advance(head, start, std::min(chunk_length, head.key.rows() - start), kExactBlock, output);
  }
  return output;
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                 const Matrix<Scalar>& state_gradient) {
  check(head);
  check_output_gradients(head, values_gradient, state_gradient);
  std::vector<Matrix<Scalar>> states{state_or_zeros(head.initial_state, head)};  // before each key, and after the last
  for (Index t = 0; t < head.key.rows(); ++t) {
    states.push_back(gated(head, states[t], t) + head.key.row(t).transpose() * head.value.row(t));
  }
  BasicGradients<Scalar> gradients = zero_gradients(head);
  Matrix<Scalar> carried = state_or_zeros(state_gradient, head);  // dS
  const Index before = position_of(head, 0);
  for (Index t = head.key.rows() - 1; t >= 0; --t) {
    if (const Index row = t - before; row >= 0) {
      carried.noalias() += head.scale * head.query.row(row).transpose() * values_gradient.row(row);
      gradients.query.row(row).noalias() = head.scale * values_gradient.row(row) * states[t + 1].transpose();
    }
    gradients.key.row(t).noalias() = head.value.row(t) * carried.transpose();
    gradients.value.row(t).noalias() = head.key.row(t) * carried;
    const Matrix<Scalar> passed = gated(head, states[t], t).cwiseProduct(carried);
    if (head.log_key_gate.size() > 0) gradients.log_key_gate.row(t) = passed.rowwise().sum();
    if (head.log_value_gate.size() > 0) gradients.log_value_gate.row(t) = passed.colwise().sum();
    carried = gated(head, carried, t);
  }
  gradients.initial_state = carried;
  return gradients;
}

template <typename Scalar>
BasicGradients<Scalar> gradients_without_stored_states(const BasicHead<Scalar>& head,
                                                       const Matrix<Scalar>& values_gradient,
                                                       const Matrix<Scalar>& state_gradient) {
  check(head);
  check_output_gradients(head, values_gradient, state_gradient);
  const Index before = position_of(head, 0), key_dim = head.key.cols(), value_dim = head.value.cols();
  BasicGradients<Scalar> gradients = zero_gradients(head);
  Matrix<Scalar> values(head.query.rows(), value_dim), state = state_or_zeros(head.initial_state, head);
  for (Index t = 0; t < head.key.rows(); ++t) {
    state = gated(head, state, t) + head.key.row(t).transpose() * head.value.row(t);
    if (const Index row = t - before; row >= 0) {
      values.row(row).noalias() = head.scale * head.query.row(row) * state;
      gradients.query.row(row).noalias() = head.scale * values_gradient.row(row) * state.transpose();
    }
  }
  Matrix<Scalar> carried = state_or_zeros(state_gradient, head);
  const Matrix<Scalar> at_the_end = state.cwiseProduct(carried);
  auto of_rows = sums_from(Vector<Scalar>(at_the_end.rowwise().sum()));
  auto of_columns = sums_from(Vector<Scalar>(at_the_end.colwise().sum()));
  for (Index t = head.key.rows() - 1; t >= 0; --t) {
    const Index row = t - before;
    if (row >= 0) carried.noalias() += head.scale * head.query.row(row).transpose() * values_gradient.row(row);
    gradients.key.row(t).noalias() = head.value.row(t) * carried.transpose();
    gradients.value.row(t).noalias() = head.key.row(t) * carried;
    const Vector<Scalar> none_of_key = Vector<Scalar>::Zero(key_dim), none_of_value = Vector<Scalar>::Zero(value_dim);
    const auto query = row >= 0 ? Vector<Scalar>(head.query.row(row)) : none_of_key;
    const auto query_gradient = row >= 0 ? Vector<Scalar>(gradients.query.row(row)) : none_of_key;
    const auto read = row >= 0 ? Vector<Scalar>(values.row(row)) : none_of_value;
    const auto read_gradient = row >= 0 ? Vector<Scalar>(values_gradient.row(row)) : none_of_value;
    add_difference(of_rows, query, query_gradient, head.key.row(t), gradients.key.row(t));
    add_difference(of_columns, read, read_gradient, head.value.row(t), gradients.value.row(t));
    const auto key_gate = gate_at(head.log_key_gate, t, key_dim),
               value_gate = gate_at(head.log_value_gate, t, value_dim);
    const bool no_row_passes = (key_gate == 0).all(), no_column_passes = (value_gate == 0).all();
    Vector<Scalar> rows(key_dim), columns(value_dim);
    close_sums(of_rows, key_gate, no_column_passes, rows);
    close_sums(of_columns, value_gate, no_row_passes, columns);
    if (head.log_key_gate.size() > 0) gradients.log_key_gate.row(t) = rows;
    if (head.log_value_gate.size() > 0) gradients.log_value_gate.row(t) = columns;
    carried = gated(head, carried, t);
  }
  gradients.initial_state = carried;
  return gradients;
}

template BasicOutput<double> recurrent(const BasicHead<double>&);
template BasicOutput<float> recurrent(const BasicHead<float>&);
template BasicOutput<double> parallel(const BasicHead<double>&);
template BasicOutput<float> parallel(const BasicHead<float>&);
template BasicOutput<double> chunked(const BasicHead<double>&, Index);
template BasicOutput<float> chunked(const BasicHead<float>&, Index);
template BasicGradients<double> gradients(const BasicHead<double>&, const Matrix<double>&, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, const Matrix<float>&, const Matrix<float>&);
template BasicGradients<double> gradients_without_stored_states(const BasicHead<double>&, const Matrix<double>&,
                                                                const Matrix<double>&);
template BasicGradients<float> gradients_without_stored_states(const BasicHead<float>&, const Matrix<float>&,
                                                               const Matrix<float>&);

}  // namespace lethe::reference::decay_fast_weights
