#include "reference/layers/rms_norm.hpp"

#include <cmath>

#include "reference/expect.hpp"
#include "reference/layers/head_dim.hpp"

namespace lethe::reference::layers {

template <typename Scalar>
Matrix<Scalar> rms_norm(const Matrix<Scalar>& rows, const Vector<Scalar>& weight, Eigen::Index heads, Scalar epsilon) {
  const Eigen::Index head_dim = head_dim_of(rows.cols(), heads);
  const bool shared = weight.size() == head_dim;
  if (!shared) expect_size("weight", "entries, or one a dimension of a head", rows.cols(), weight.size());
  Matrix<Scalar> normed(rows.rows(), rows.cols());
  for (Eigen::Index h = 0; h < heads; ++h) {
    const auto part = rows.middleCols(h * head_dim, head_dim);
    const auto part_weight = weight.segment(shared ? 0 : h * head_dim, head_dim);
    for (Eigen::Index t = 0; t < rows.rows(); ++t) {
      const Scalar root_mean_square = std::sqrt(part.row(t).squaredNorm() / static_cast<Scalar>(head_dim) + epsilon);
      normed.row(t).segment(h * head_dim, head_dim) =
          part.row(t).cwiseProduct(part_weight.transpose()) / root_mean_square;
    }
  }
  return normed;
}

template Matrix<double> rms_norm(const Matrix<double>&, const Vector<double>&, Eigen::Index, double);
template Matrix<float> rms_norm(const Matrix<float>&, const Vector<float>&, Eigen::Index, float);

}  // namespace lethe::reference::layers
