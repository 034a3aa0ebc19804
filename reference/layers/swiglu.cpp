#include "reference/layers/swiglu.hpp"

#include "reference/expect.hpp"
#include "reference/layers/sigmoid.hpp"

namespace lethe::reference::layers {

template <typename Scalar>
Matrix<Scalar> swiglu(const Matrix<Scalar>& gate_and_up) {
  const Eigen::Index width = gate_and_up.cols() / 2;
  expect_size("gate_and_up", "columns, an even number,", 2 * width, gate_and_up.cols());
  const Matrix<Scalar> gate = gate_and_up.leftCols(width);
  return gate.cwiseProduct(sigmoid(gate)).cwiseProduct(gate_and_up.rightCols(width));
}

template Matrix<double> swiglu(const Matrix<double>&);
template Matrix<float> swiglu(const Matrix<float>&);

}  // namespace lethe::reference::layers
