#include "reference/layers/kv_shift.hpp"

#include "reference/expect.hpp"
#include "reference/layers/head_dim.hpp"

namespace lethe::reference::layers {

template <typename Scalar>
Matrix<Scalar> kv_shift(const Matrix<Scalar>& projected, const Matrix<Scalar>& mix, const Vector<Scalar>& previous) {
  expect_size("mix", "rows, as projected has", projected.rows(), mix.rows());
  expect_size("previous", "entries, one a column of projected", projected.cols(), previous.size());
  const Eigen::Index head_dim = head_dim_of(projected.cols(), mix.cols());
  Matrix<Scalar> shifted(projected.rows(), projected.cols());
  for (Eigen::Index t = 0; t < projected.rows(); ++t) {
    for (Eigen::Index i = 0; i < projected.cols(); ++i) {
      const Scalar before = t == 0 ? previous[i] : projected(t - 1, i);
      const Scalar alpha = mix(t, i / head_dim);
      shifted(t, i) = alpha * before + (1 - alpha) * projected(t, i);
    }
  }
  return shifted;
}

template Matrix<double> kv_shift(const Matrix<double>&, const Matrix<double>&, const Vector<double>&);
template Matrix<float> kv_shift(const Matrix<float>&, const Matrix<float>&, const Vector<float>&);

}  // namespace lethe::reference::layers
