#include "reference/alibi.hpp"

#include <cmath>

#include "reference/biased_softmax.hpp"

namespace lethe::reference::alibi {
namespace {

template <typename Scalar>
void check(const BasicHead<Scalar>& head, Scalar slope) {
  check_shapes(head);
  if (!(slope >= 0 && std::isfinite(slope))) {
    throw std::invalid_argument("slope: expected a finite number >= 0, found " + std::to_string(slope));
  }
}

template <typename Scalar>
auto step_of(Scalar slope) {
  return [slope](Eigen::Index) { return -slope; };
}

template <typename Scalar>
auto bias_of(Scalar slope) {
  return [slope](Eigen::Index i, Eigen::Index j) { return -static_cast<Scalar>(i - j) * slope; };
}

}  // namespace

double slope_of(int64_t head, int64_t heads) {
  if (head < 0 || head >= heads) {
    throw std::invalid_argument("head: expected 0 <= head < " + std::to_string(heads) + ", found " +
                                std::to_string(head));
  }
  return std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(heads));
}

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Scalar slope) {
  check(head, slope);
  return biased_softmax_recurrent(head, step_of(slope));
}

template <typename Scalar>
BasicOutput<Scalar> one_query(const BasicHead<Scalar>& head, Scalar slope, Eigen::Index row) {
  check(head, slope);
  return biased_softmax_one_query(head, step_of(slope), row);
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Scalar slope) {
  check(head, slope);
  return biased_softmax_parallel(head, bias_of(slope));
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Scalar slope, const Matrix<Scalar>& values_gradient) {
  check(head, slope);
  BasicGradients<Scalar> result = biased_softmax_gradients(head, bias_of(slope), values_gradient);
  result.log_forget.resize(0);
  return result;
}

template BasicOutput<double> recurrent(const BasicHead<double>&, double);
template BasicOutput<float> recurrent(const BasicHead<float>&, float);
template BasicOutput<double> one_query(const BasicHead<double>&, double, Eigen::Index);
template BasicOutput<float> one_query(const BasicHead<float>&, float, Eigen::Index);
template BasicOutput<double> parallel(const BasicHead<double>&, double);
template BasicOutput<float> parallel(const BasicHead<float>&, float);
template BasicGradients<double> gradients(const BasicHead<double>&, double, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, float, const Matrix<float>&);

}  // namespace lethe::reference::alibi
