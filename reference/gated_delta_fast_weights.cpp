#include "reference/gated_delta_fast_weights.hpp"

#include "reference/delta_rule.hpp"

namespace lethe::reference::gated_delta_fast_weights {
namespace {

// log f + log a, checked.
template <typename Scalar>
Matrix<Scalar> log_gate_of(const BasicHead<Scalar>& head) {
  check_delta_rule(head);
  expect_log_gate("log_forget", head.log_forget, head.key.rows(), 1);
  expect_log_gate("log_key_gate", head.log_key_gate, head.key.rows(), head.key.cols());
  Matrix<Scalar> log_gate = head.log_key_gate;
  if (head.log_forget.size() == 0) return log_gate;
  if (log_gate.size() == 0) log_gate.setZero(head.key.rows(), head.key.cols());
  log_gate.colwise() += head.log_forget;
  return log_gate;
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head) {
  return delta_rule_recurrent(head, log_gate_of(head));
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head) {
  return delta_rule_chunked(head, log_gate_of(head), head.key.rows(), head.key.rows());
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Eigen::Index chunk_length) {
  expect_chunk_length(chunk_length);
  return delta_rule_chunked(head, log_gate_of(head), chunk_length, kExactBlock);
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                 const Matrix<Scalar>& state_gradient) {
  BasicGradients<Scalar> result =
      delta_rule_gradients(head, log_gate_of(head), values_gradient, state_gradient, Read::kAfterTheWrite);
  if (head.log_forget.size() > 0) result.log_forget = result.log_key_gate.rowwise().sum();
  if (head.log_key_gate.size() == 0) result.log_key_gate.resize(0, 0);
  return result;
}

template BasicOutput<double> recurrent(const BasicHead<double>&);
template BasicOutput<float> recurrent(const BasicHead<float>&);
template BasicOutput<double> parallel(const BasicHead<double>&);
template BasicOutput<float> parallel(const BasicHead<float>&);
template BasicOutput<double> chunked(const BasicHead<double>&, Eigen::Index);
template BasicOutput<float> chunked(const BasicHead<float>&, Eigen::Index);
template BasicGradients<double> gradients(const BasicHead<double>&, const Matrix<double>&, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, const Matrix<float>&, const Matrix<float>&);

}  // namespace lethe::reference::gated_delta_fast_weights
