#include "reference/softmax_attention.hpp"

#include "reference/biased_softmax.hpp"

namespace lethe::reference::softmax_attention {
namespace {

template <typename Scalar>
Scalar no_step(Eigen::Index) {
  return 0;
}

template <typename Scalar>
Scalar no_bias(Eigen::Index, Eigen::Index) {
  return 0;
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head) {
  check_shapes(head);
  return biased_softmax_recurrent(head, no_step<Scalar>);
}

template <typename Scalar>
BasicOutput<Scalar> one_query(const BasicHead<Scalar>& head, Eigen::Index row) {
  check_shapes(head);
  return biased_softmax_one_query(head, no_step<Scalar>, row);
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head) {
  check_shapes(head);
  return biased_softmax_parallel(head, no_bias<Scalar>);
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient) {
  check_shapes(head);
  BasicGradients<Scalar> result = biased_softmax_gradients(head, no_bias<Scalar>, values_gradient);
  result.log_forget.resize(0);
  return result;
}

template BasicOutput<double> recurrent(const BasicHead<double>&);
template BasicOutput<float> recurrent(const BasicHead<float>&);
template BasicOutput<double> one_query(const BasicHead<double>&, Eigen::Index);
template BasicOutput<float> one_query(const BasicHead<float>&, Eigen::Index);
template BasicOutput<double> parallel(const BasicHead<double>&);
template BasicOutput<float> parallel(const BasicHead<float>&);
template BasicGradients<double> gradients(const BasicHead<double>&, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, const Matrix<float>&);

}  // namespace lethe::reference::softmax_attention
