#include "reference/linear_attention.hpp"

#include "reference/attention_norm.hpp"
#include "reference/chunks.hpp"
#include "reference/gated_linear_attention.hpp"

namespace lethe::reference::linear_attention {
namespace {

template <typename Scalar>
BasicHead<Scalar> with_open_gates(BasicHead<Scalar> head) {
  head.log_forget.setZero(head.key.rows());
  return head;
}

template <typename Scalar>
BasicOutput<Scalar> unnormalized_recurrent(const BasicHead<Scalar>& head) {
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  // [recurrent]
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    const Eigen::Index row = t - position_of(head, 0);  // of the query at position t; before 0 there is none
    output.state += head.key.row(t).transpose() * head.value.row(t);
    if (row >= 0) output.values.row(row) = head.scale * head.query.row(row) * output.state;
  }
  // [/recurrent]
  return output;
}

template <typename Scalar>
BasicOutput<Scalar> unnormalized_parallel(const BasicHead<Scalar>& head) {
  const Matrix<Scalar> initial_state = state_or_zeros(head.initial_state, head);
  BasicOutput<Scalar> output;
  // [parallel]
  const Matrix<Scalar> scores = causal<Scalar>(head.scale * head.query * head.key.transpose());  // [Tq,Tk]
  output.values = scores * head.value + head.scale * head.query * initial_state;
  output.state = initial_state + head.key.transpose() * head.value;
  // [/parallel]
  return output;
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized) {
  check_linear(head, normalized);
  return normalized_form(head, normalized, unnormalized_recurrent<Scalar>);
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized) {
  check_linear(head, normalized);
  return normalized_form(head, normalized, unnormalized_parallel<Scalar>);
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length) {
  check_linear(head, normalized);
  return normalized_form(head, normalized, [=](const BasicHead<Scalar>& whole) {
    return in_chunks(whole, chunk_length, unnormalized_parallel<Scalar>);
  });
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient,
                                 const Vector<Scalar>& normalizer_gradient) {
  check_linear(head, normalized);
  BasicGradients<Scalar> result = gated_linear_attention::gradients(with_open_gates(head), normalized, values_gradient,
                                                                    state_gradient, normalizer_gradient);
  result.log_forget.resize(0);
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

}  // namespace lethe::reference::linear_attention
