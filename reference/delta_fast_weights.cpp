#include "reference/delta_fast_weights.hpp"

#include "reference/attention_norm.hpp"
#include "reference/delta_rule.hpp"

namespace lethe::reference::delta_fast_weights {
namespace {

template <typename Scalar>
void check(const BasicHead<Scalar>& head, Normalized normalized) {
  check_delta_rule(head);
  check_linear(head, normalized);
}

// The head whose linear attention is z_t·q_t: values of one, and the normalizer as its state.
template <typename Scalar>
BasicHead<Scalar> head_of_weights(const BasicHead<Scalar>& head) {
  BasicHead<Scalar> weights{.query = head.query, .key = head.key, .value = {}, .log_forget = {}};
  weights.value.setOnes(head.key.rows(), 1);
  weights.initial_state = initial_normalizer_of(head, Normalized::kYes);
  return weights;
}

// A form of the delta rule divided by the same form of linear attention.
template <typename Scalar, typename Delta, typename Linear>
BasicOutput<Scalar> divided(BasicHead<Scalar> head, Normalized normalized, const Delta& delta, const Linear& linear) {
  check(head, normalized);
  if (normalized == Normalized::kNo) return delta(head);
  head.scale = 1;
  BasicOutput<Scalar> output = delta(head);
  const BasicOutput<Scalar> weights = linear(head_of_weights(head));
  divide_rows(output.values, Vector<Scalar>(weights.values));
  output.normalizer = weights.state;
  return output;
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized) {
  return divided(
      head, normalized, [](const auto& h) { return delta_rule_recurrent(h, Matrix<Scalar>()); },
      [](const auto& h) { return linear_attention::recurrent(h, Normalized::kNo); });
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized) {
  return divided(
      head, normalized,
      [](const auto& h) { return delta_rule_chunked(h, Matrix<Scalar>(), h.key.rows(), h.key.rows()); },
      [](const auto& h) { return linear_attention::parallel(h, Normalized::kNo); });
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length) {
  expect_chunk_length(chunk_length);
  return divided(
      head, normalized,
      [=](const auto& h) { return delta_rule_chunked(h, Matrix<Scalar>(), chunk_length, kExactBlock); },
      [=](const auto& h) { return linear_attention::chunked(h, Normalized::kNo, chunk_length); });
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient,
                                 const Vector<Scalar>& normalizer_gradient) {
  check(head, normalized);
  check_output_gradients(head, values_gradient, state_gradient);
  if (normalized == Normalized::kNo) {
    return delta_rule_gradients(head, Matrix<Scalar>(), values_gradient, state_gradient, Read::kAfterTheWrite);
  }
  if (normalizer_gradient.size() > 0) {
    expect_size("normalizer_gradient", "entries, one a column of key", head.key.cols(), normalizer_gradient.size());
  }
  BasicHead<Scalar> unscaled = head;
  unscaled.scale = 1;
  const BasicHead<Scalar> ones = head_of_weights(head);
  const Vector<Scalar> weights = linear_attention::recurrent(ones, Normalized::kNo).values;
  const Matrix<Scalar> values = recurrent(head, normalized).values;  // throws where a weight is zero
  const Matrix<Scalar> of_products = weights.cwiseInverse().asDiagonal() * values_gradient;
  const Matrix<Scalar> of_weights = -of_products.cwiseProduct(values).rowwise().sum();
  BasicGradients<Scalar> result =
      delta_rule_gradients(unscaled, Matrix<Scalar>(), of_products, state_gradient, Read::kAfterTheWrite);
  const BasicGradients<Scalar> divisor =
      linear_attention::gradients(ones, Normalized::kNo, of_weights, Matrix<Scalar>(normalizer_gradient));
  result.query += divisor.query;
  result.key += divisor.key;
  result.initial_normalizer = divisor.initial_state;
  return result;
}

template <typename Scalar>
BasicOutput<Scalar> recurrent_reading_first(const BasicHead<Scalar>& head) {
  check_delta_rule(head);
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  for (Eigen::Index t = 0, row = -position_of(head, 0); t < head.key.rows(); ++t, ++row) {
    if (row >= 0) output.values.row(row).noalias() = head.scale * head.query.row(row) * output.state;
    output.state += head.key.row(t).transpose() * correction(head, output.state, t);
  }
  return output;
}

template <typename Scalar>
BasicGradients<Scalar> gradients_reading_first(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                               const Matrix<Scalar>& state_gradient) {
  check_delta_rule(head);
  return delta_rule_gradients(head, Matrix<Scalar>(), values_gradient, state_gradient, Read::kBeforeTheToken);
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
template BasicOutput<double> recurrent_reading_first(const BasicHead<double>&);
template BasicOutput<float> recurrent_reading_first(const BasicHead<float>&);
template BasicGradients<double> gradients_reading_first(const BasicHead<double>&, const Matrix<double>&,
                                                        const Matrix<double>&);
template BasicGradients<float> gradients_reading_first(const BasicHead<float>&, const Matrix<float>&,
                                                       const Matrix<float>&);

}  // namespace lethe::reference::delta_fast_weights
