#include "reference/local_attention.hpp"

#include <algorithm>

#include "reference/biased_softmax.hpp"

namespace lethe::reference::local_attention {
namespace {

template <typename Scalar>
void check(const BasicHead<Scalar>& head, Eigen::Index window) {
  check_shapes(head);
  if (window < 1) throw std::invalid_argument("window: expected >= 1, found " + std::to_string(window));
}

template <typename Scalar>
auto bias_of(Eigen::Index window) {
  return [window](Eigen::Index i, Eigen::Index j) -> Scalar {
    return i - j < window ? Scalar(0) : -std::numeric_limits<Scalar>::infinity();
  };
}

// Query rows row … row + rows − 1 with the tokens that any of them sees.
template <typename Scalar>
BasicHead<Scalar> within_reach(const BasicHead<Scalar>& head, Eigen::Index window, Eigen::Index row,
                               Eigen::Index rows) {
  const Eigen::Index end = position_of(head, row) + rows;
  const Eigen::Index first = std::max(position_of(head, row) + 1 - window, Eigen::Index{0});
  return {head.query.middleRows(row, rows),
          head.key.middleRows(first, end - first),
          head.value.middleRows(first, end - first),
          {},
          head.scale};
}

}  // namespace

template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Eigen::Index window) {
  check(head, window);
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  for (Eigen::Index row = 0; row < head.query.rows(); ++row) {
    const BasicHead<Scalar> kept = within_reach(head, window, row, 1);  // the query's token and W − 1 before it
    const BasicOutput<Scalar> one = biased_softmax_one_query(
        kept, [](Eigen::Index) { return Scalar(0); }, 0);
    output.values.row(row) = one.values.row(0);
    output.log_normalizer[row] = one.log_normalizer[0];
  }
  return output;
}

template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Eigen::Index window) {
  check(head, window);
  return biased_softmax_parallel(head, bias_of<Scalar>(window));
}

template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Eigen::Index window, Eigen::Index chunk_length) {
  check(head, window);
  if (chunk_length < 1)
    throw std::invalid_argument("chunk_length: expected >= 1, found " + std::to_string(chunk_length));
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.log_normalizer.resize(head.query.rows());
  for (Eigen::Index row = 0; row < head.query.rows(); row += chunk_length) {
    const Eigen::Index rows = std::min(chunk_length, head.query.rows() - row);
    const BasicOutput<Scalar> chunk =
        biased_softmax_parallel(within_reach(head, window, row, rows), bias_of<Scalar>(window));
    output.values.middleRows(row, rows) = chunk.values;
    output.log_normalizer.segment(row, rows) = chunk.log_normalizer;
  }
  return output;
}

template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Eigen::Index window,
                                 const Matrix<Scalar>& values_gradient) {
  check(head, window);
  BasicGradients<Scalar> result = biased_softmax_gradients(head, bias_of<Scalar>(window), values_gradient);
  result.log_forget.resize(0);
  return result;
}

template BasicOutput<double> recurrent(const BasicHead<double>&, Eigen::Index);
template BasicOutput<float> recurrent(const BasicHead<float>&, Eigen::Index);
template BasicOutput<double> parallel(const BasicHead<double>&, Eigen::Index);
template BasicOutput<float> parallel(const BasicHead<float>&, Eigen::Index);
template BasicOutput<double> chunked(const BasicHead<double>&, Eigen::Index, Eigen::Index);
template BasicOutput<float> chunked(const BasicHead<float>&, Eigen::Index, Eigen::Index);
template BasicGradients<double> gradients(const BasicHead<double>&, Eigen::Index, const Matrix<double>&);
template BasicGradients<float> gradients(const BasicHead<float>&, Eigen::Index, const Matrix<float>&);

}  // namespace lethe::reference::local_attention
