#include "reference/gated_fast_weights.hpp"

#include <cmath>

#include "reference/fast_weights_input.hpp"
#include "reference/gated_linear_attention.hpp"

namespace lethe::reference::gated_fast_weights {
namespace {

// The head whose gated_linear_attention this is: keys times the write factor 1 − f.
template <typename Scalar>
BasicHead<Scalar> with_write_factor(BasicHead<Scalar> head) {
  expect_size("log_forget", "entries, one a key", head.key.rows(), head.log_forget.size());
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) head.key.row(t) *= -std::expm1(head.log_forget[t]);
  return head;
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized) {
  return gated_linear_attention::recurrent(with_write_factor(head), normalized);
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized) {
  return gated_linear_attention::parallel(with_write_factor(head), normalized);
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length) {
  return gated_linear_attention::chunked(with_write_factor(head), normalized, chunk_length);
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient,
                                 const Vector<Scalar>& normalizer_gradient) {
  BasicGradients<Scalar> result = gated_linear_attention::gradients(
      with_write_factor(head), normalized, values_gradient, state_gradient, normalizer_gradient);
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    result.log_forget[t] -= std::exp(head.log_forget[t]) * head.key.row(t).dot(result.key.row(t));
    result.key.row(t) *= -std::expm1(head.log_forget[t]);
  }
  return result;
}

template BasicOutput<double> recurrent(const BasicHead<double>&, Normalized);
template BasicOutput<float> recurrent(const BasicHead<float>&, Normalized);
template BasicOutput<double> parallel(const BasicHead<double>&, Normalized);
template BasicOutput<float> parallel(const BasicHead<float>&, Normalized);
template BasicOutput<double> chunked(const BasicHead<double>&, Normalized, Eigen::Index);
template BasicOutput<float> chunked(const BasicHead<float>&, Normalized, Eigen::Index);
template BasicGradients<double> gradients(const BasicHead<double>&, Normalized, const Matrix<double>&,
                                          const Matrix<double>&, const Vector<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, Normalized, const Matrix<float>&,
                                         const Matrix<float>&, const Vector<float>&);

}  // namespace lethe::reference::gated_fast_weights
