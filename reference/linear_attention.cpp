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

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized) {
  check_linear(head, normalized);
  const Scalar scale = normalized == Normalized::kYes ? Scalar(1) : head.scale;
  const Eigen::Index first = position_of(head, 0);
  Matrix<Scalar> values(head.query.rows(), head.value.cols());
  // [recurrent]
  Matrix<Scalar> state = state_or_zeros(head.initial_state, head);
  Vector<Scalar> normalizer = initial_normalizer_of(head, normalized);
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    state += head.key.row(t).transpose() * head.value.row(t);
    if (normalized == Normalized::kYes) normalizer += head.key.row(t).transpose();
    if (t < first) continue;
    values.row(t - first) = scale * head.query.row(t - first) * state;
    if (normalized == Normalized::kYes)
      values.row(t - first) /= expect_weight(head.query.row(t - first).dot(normalizer), t - first);
  }
  // [/recurrent]
  return {.values = values, .state = state, .normalizer = normalizer};
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized) {
  check_linear(head, normalized);
  const Scalar scale = normalized == Normalized::kYes ? Scalar(1) : head.scale;
  const Matrix<Scalar> initial_state = state_or_zeros(head.initial_state, head);
  BasicOutput<Scalar> output;
  // [parallel]
  const Matrix<Scalar> scores = causal<Scalar>(scale * head.query * head.key.transpose());
  output.values = scores * head.value + scale * head.query * initial_state;
  output.state = initial_state + head.key.transpose() * head.value;
  if (normalized == Normalized::kYes) {
    const Vector<Scalar> initial_normalizer = initial_normalizer_of(head, normalized);
    divide_rows<Scalar>(output.values, scores.rowwise().sum() + head.query * initial_normalizer);
    output.normalizer = initial_normalizer + head.key.colwise().sum().transpose();
  }
  // [/parallel]
  return output;
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length) {
  check_linear(head, normalized);
  return in_chunks(head, chunk_length, [&](const BasicHead<Scalar>& part) { return parallel(part, normalized); });
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
