#include "reference/forgetting_attention.hpp"

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

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head) {
  check(head);
  return biased_softmax_recurrent(head, step_of(head));
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
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient) {
  check(head);
  return biased_softmax_gradients(head, DecayBias<Scalar>(head.log_forget), values_gradient);
}

template BasicOutput<double> recurrent(const BasicHead<double>&);
template BasicOutput<float> recurrent(const BasicHead<float>&);
template BasicOutput<double> one_query(const BasicHead<double>&, Eigen::Index);
template BasicOutput<float> one_query(const BasicHead<float>&, Eigen::Index);
template BasicOutput<double> parallel(const BasicHead<double>&);
template BasicOutput<float> parallel(const BasicHead<float>&);
template BasicGradients<double> gradients(const BasicHead<double>&, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, const Matrix<float>&);

}  // namespace lethe::reference::forgetting_attention
