#include "reference/forgetting_attention.hpp"

#include <algorithm>

#include "reference/biased_softmax.hpp"
#include "reference/decay_bias.hpp"

namespace lethe::reference::forgetting_attention {
namespace {

template <typename Scalar>
void check(const BasicHead<Scalar>& head) {
  check_shapes(head);
  expect_size("log_forget", "entries, one a key", head.key.rows(), head.log_forget.size());
  if (!(head.log_forget.array() <= 0).all()) {
    throw std::invalid_argument("log_forget: expected values <= 0, found a positive one or NaN");
  }
}

template <typename Scalar>
auto step_of(const BasicHead<Scalar>& head) {
  return [&head](Eigen::Index j) { return head.log_forget[j]; };
}

template <typename Scalar>
void check(const BasicHead<Scalar>& head, const Sight& sight) {
  check(head);
  if (sight.window < 1) throw std::invalid_argument("window: expected >= 1, found " + std::to_string(sight.window));
  const auto& starts = sight.cu_seqlens;
  if (starts.empty()) return;
  expect_size("query", "rows, as key has, with cu_seqlens", head.key.rows(), head.query.rows());
  if (starts.size() < 2 || starts.front() != 0 || starts.back() != head.key.rows() || !std::ranges::is_sorted(starts))
    throw std::invalid_argument("cu_seqlens: expected ascending numbers from 0 to " + std::to_string(head.key.rows()));
}

template <typename Scalar>
auto bias_of(const BasicHead<Scalar>& head, const Sight& sight) {
  return [decay = DecayBias<Scalar>(head.log_forget), &sight](Eigen::Index i, Eigen::Index j) {
    return j < sight.first_key(i) ? -std::numeric_limits<Scalar>::infinity() : decay(i, j);
  };
}

}  // namespace

Eigen::Index Sight::first_key(Eigen::Index position) const {
  const Eigen::Index first = std::max<Eigen::Index>(position - (window - 1), 0);
  return cu_seqlens.empty() ? first : std::max(first, *(std::ranges::upper_bound(cu_seqlens, position) - 1));
}

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head) {
  check(head);
  return biased_softmax_recurrent(head, step_of(head));
}

template <typename Scalar>
BasicOutput<Scalar> recurrent_within(const BasicHead<Scalar>& head, const Sight& sight) {
  check(head, sight);
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  for (Eigen::Index row = 0; row < head.query.rows(); ++row) {
    const Eigen::Index first = sight.first_key(position_of(head, row)), keys = position_of(head, row) + 1 - first;
    const BasicHead<Scalar> seen{head.query.middleRows(row, 1), head.key.middleRows(first, keys),
                                 head.value.middleRows(first, keys), head.log_forget.segment(first, keys), head.scale};
    const BasicOutput<Scalar> one = biased_softmax_one_query(seen, step_of(seen), 0);
    output.values.row(row) = one.values.row(0);
    output.log_normalizer[row] = one.log_normalizer[0];
  }
  return output;
}

template <typename Scalar>
BasicOutput<Scalar> one_query(const BasicHead<Scalar>& head, Eigen::Index row) {
  check(head);
  return biased_softmax_one_query(head, step_of(head), row);
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head) {
  check(head);
  return biased_softmax_parallel(head, DecayBias<Scalar>(head.log_forget));
}

template <typename Scalar>
BasicOutput<Scalar> parallel_within(const BasicHead<Scalar>& head, const Sight& sight) {
  check(head, sight);
  return biased_softmax_parallel(head, bias_of(head, sight));
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient) {
  check(head);
  return biased_softmax_gradients(head, DecayBias<Scalar>(head.log_forget), values_gradient);
}

template <typename Scalar>
BasicGradients<Scalar> gradients_within(const BasicHead<Scalar>& head, const Sight& sight,
                                        const Matrix<Scalar>& values_gradient) {
  check(head, sight);
  return biased_softmax_gradients(head, bias_of(head, sight), values_gradient);
}

template BasicOutput<double> recurrent(const BasicHead<double>&);
template BasicOutput<float> recurrent(const BasicHead<float>&);
template BasicOutput<double> recurrent_within(const BasicHead<double>&, const Sight&);
template BasicOutput<float> recurrent_within(const BasicHead<float>&, const Sight&);
template BasicOutput<double> parallel_within(const BasicHead<double>&, const Sight&);
template BasicOutput<float> parallel_within(const BasicHead<float>&, const Sight&);
template BasicGradients<double> gradients_within(const BasicHead<double>&, const Sight&, const Matrix<double>&);
template BasicGradients<float> gradients_within(const BasicHead<float>&, const Sight&, const Matrix<float>&);
template BasicOutput<double> one_query(const BasicHead<double>&, Eigen::Index);
template BasicOutput<float> one_query(const BasicHead<float>&, Eigen::Index);
template BasicOutput<double> parallel(const BasicHead<double>&);
template BasicOutput<float> parallel(const BasicHead<float>&);
template BasicGradients<double> gradients(const BasicHead<double>&, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, const Matrix<float>&);

}  // namespace lethe::reference::forgetting_attention
