#include "reference/delta_fast_weights.hpp"

#include "reference/delta_rule.hpp"

namespace lethe::reference::delta_fast_weights {

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head) {
  check_delta_rule(head);
  return delta_rule_recurrent(head, Matrix<Scalar>(), Read::kAfterTheWrite);
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head) {
  check_delta_rule(head);
  return delta_rule_chunked(head, Matrix<Scalar>(), head.key.rows(), head.key.rows());
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Eigen::Index chunk_length) {
  check_delta_rule(head);
  expect_chunk_length(chunk_length);
  return delta_rule_chunked(head, Matrix<Scalar>(), chunk_length, kExactBlockOfDeltaRule);
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                 const Matrix<Scalar>& state_gradient) {
  check_delta_rule(head);
  return delta_rule_gradients(head, Matrix<Scalar>(), values_gradient, state_gradient, Read::kAfterTheWrite);
}

template <typename Scalar>
BasicOutput<Scalar> recurrent_reading_first(const BasicHead<Scalar>& head) {
  check_delta_rule(head);
  return delta_rule_recurrent(head, Matrix<Scalar>(), Read::kBeforeTheToken);
}

template <typename Scalar>
BasicGradients<Scalar> gradients_reading_first(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                               const Matrix<Scalar>& state_gradient) {
  check_delta_rule(head);
  return delta_rule_gradients(head, Matrix<Scalar>(), values_gradient, state_gradient, Read::kBeforeTheToken);
}

template BasicOutput<double> recurrent(const BasicHead<double>&);
template BasicOutput<float> recurrent(const BasicHead<float>&);
template BasicOutput<double> parallel(const BasicHead<double>&);
template BasicOutput<float> parallel(const BasicHead<float>&);
template BasicOutput<double> chunked(const BasicHead<double>&, Eigen::Index);
template BasicOutput<float> chunked(const BasicHead<float>&, Eigen::Index);
template BasicGradients<double> gradients(const BasicHead<double>&, const Matrix<double>&, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, const Matrix<float>&, const Matrix<float>&);
template BasicOutput<double> recurrent_reading_first(const BasicHead<double>&);
template BasicOutput<float> recurrent_reading_first(const BasicHead<float>&);
template BasicGradients<double> gradients_reading_first(const BasicHead<double>&, const Matrix<double>&,
                                                        const Matrix<double>&);
template BasicGradients<float> gradients_reading_first(const BasicHead<float>&, const Matrix<float>&,
                                                       const Matrix<float>&);

}  // namespace lethe::reference::delta_fast_weights
