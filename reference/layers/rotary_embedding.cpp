#include "reference/layers/rotary_embedding.hpp"

#include <cmath>

#include "reference/expect.hpp"
#include "reference/layers/head_dim.hpp"

namespace lethe::reference::layers {

template <typename Scalar>
Matrix<Scalar> rotary_embedding(const Matrix<Scalar>& rows, Eigen::Index heads, double base,
                                Eigen::Index first_position) {
  const Eigen::Index head_dim = head_dim_of(rows.cols(), heads);
  const Eigen::Index half = head_dim / 2;
  expect_size("rows", "columns a head, an even number,", 2 * half, head_dim);
  Matrix<Scalar> rotated(rows.rows(), rows.cols());
  for (Eigen::Index t = 0; t < rows.rows(); ++t) {
    for (Eigen::Index i = 0; i < half; ++i) {
      const double frequency = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
      const double angle = static_cast<double>(first_position + t) * frequency;
      const auto cosine = static_cast<Scalar>(std::cos(angle));
      const auto sine = static_cast<Scalar>(std::sin(angle));
      for (Eigen::Index first = i; first < rows.cols(); first += head_dim) {
        const Eigen::Index second = first + half;
        rotated(t, first) = rows(t, first) * cosine - rows(t, second) * sine;
        rotated(t, second) = rows(t, first) * sine + rows(t, second) * cosine;
      }
    }
  }
  return rotated;
}

template Matrix<double> rotary_embedding(const Matrix<double>&, Eigen::Index, double, Eigen::Index);
template Matrix<float> rotary_embedding(const Matrix<float>&, Eigen::Index, double, Eigen::Index);

}  // namespace lethe::reference::layers
