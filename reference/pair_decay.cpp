#include "reference/pair_decay.hpp"

#include <algorithm>
#include <cmath>

namespace lethe::reference {

template <typename Scalar>
PairDecay<Scalar>::PairDecay(const Matrix<Scalar>& log_gate, Eigen::Index dim) : dim_(dim) {
  if (log_gate.size() == 0) return;
  Vector<Scalar> shifted = Vector<Scalar>::Zero(log_gate.rows() + 1);  // DecayBias never uses entry 0
  for (Eigen::Index d = 0; d < dim; ++d) {
    shifted.tail(log_gate.rows()) = log_gate.col(d);
    dimensions_.emplace_back(shifted);
  }
}

template <typename Scalar>
typename PairDecay<Scalar>::Row PairDecay<Scalar>::between(Eigen::Index i, Eigen::Index j) const {
  Row decay = Row::Ones(dim_);
  if (dimensions_.empty() || i == j) return decay;
  for (Eigen::Index d = 0; d < dim_; ++d) decay[d] = std::exp(dimensions_[d](i + 1, j + 1));
  return decay;
}

template <typename Scalar>
Matrix<Scalar> decayed_products(const Matrix<Scalar>& left, const Matrix<Scalar>& right, const PairDecay<Scalar>& decay,
                                Eigen::Index first, Eigen::Index block) {
  Matrix<Scalar> products = Matrix<Scalar>::Zero(left.rows(), right.rows());
  for (Eigen::Index row = 0; row < left.rows();) {
    const Eigen::Index begin = (first + row) / block * block;  // of the row's block
    const Eigen::Index rows = std::min(left.rows(), begin + block - first) - row;
    Matrix<Scalar> query = left.middleRows(row, rows), key = right.topRows(begin);
    for (Eigen::Index r = 0; r < rows && begin > 0; ++r) {
      query.row(r).array() *= decay.between(first + row + r, begin - 1);
    }
    for (Eigen::Index s = 0; s < begin; ++s) key.row(s).array() *= decay.between(begin - 1, s);
    products.block(row, 0, rows, begin).noalias() = query * key.transpose();
    for (Eigen::Index r = row; r < row + rows; ++r) {
      for (Eigen::Index s = begin; s <= first + r; ++s) {
        products(r, s) = (left.row(r).array() * right.row(s).array() * decay.between(first + r, s)).sum();
      }
    }
    row += rows;
  }
  return products;
}

template <typename Scalar>
Matrix<Scalar> decayed_sums(const Matrix<Scalar>& weights, const Matrix<Scalar>& value, const PairDecay<Scalar>& decay,
                            Eigen::Index first, Eigen::Index block) {
  Matrix<Scalar> sums = Matrix<Scalar>::Zero(weights.rows(), value.cols());
  for (Eigen::Index row = 0; row < weights.rows();) {
    const Eigen::Index begin = (first + row) / block * block;
    const Eigen::Index rows = std::min(weights.rows(), begin + block - first) - row;
    Matrix<Scalar> past = value.topRows(begin);
    for (Eigen::Index s = 0; s < begin; ++s) past.row(s).array() *= decay.between(begin - 1, s);
    sums.middleRows(row, rows).noalias() = weights.block(row, 0, rows, begin) * past;
    for (Eigen::Index r = row; r < row + rows; ++r) {
      if (begin > 0) sums.row(r).array() *= decay.between(first + r, begin - 1);
      for (Eigen::Index s = begin; s <= first + r; ++s) {
        sums.row(r).array() += weights(r, s) * decay.between(first + r, s) * value.row(s).array();
      }
    }
    row += rows;
  }
  return sums;
}

template <typename Scalar>
Matrix<Scalar> decayed_to_the_end(const Matrix<Scalar>& rows, const PairDecay<Scalar>& decay) {
  Matrix<Scalar> result = rows;
  for (Eigen::Index s = 0; s < rows.rows(); ++s) result.row(s).array() *= decay.between(rows.rows() - 1, s);
  return result;
}

template <typename Scalar>
Matrix<Scalar> decayed_from_the_start(const Matrix<Scalar>& rows, const PairDecay<Scalar>& decay, Eigen::Index first) {
  Matrix<Scalar> result = rows;
  for (Eigen::Index r = 0; r < rows.rows(); ++r) result.row(r).array() *= decay.between(first + r, -1);
  return result;
}

template class PairDecay<double>;
template class PairDecay<float>;
template Matrix<double> decayed_products(const Matrix<double>&, const Matrix<double>&, const PairDecay<double>&,
                                         Eigen::Index, Eigen::Index);
template Matrix<float> decayed_products(const Matrix<float>&, const Matrix<float>&, const PairDecay<float>&,
                                        Eigen::Index, Eigen::Index);
template Matrix<double> decayed_sums(const Matrix<double>&, const Matrix<double>&, const PairDecay<double>&,
                                     Eigen::Index, Eigen::Index);
template Matrix<float> decayed_sums(const Matrix<float>&, const Matrix<float>&, const PairDecay<float>&, Eigen::Index,
                                    Eigen::Index);
template Matrix<double> decayed_to_the_end(const Matrix<double>&, const PairDecay<double>&);
template Matrix<float> decayed_to_the_end(const Matrix<float>&, const PairDecay<float>&);
template Matrix<double> decayed_from_the_start(const Matrix<double>&, const PairDecay<double>&, Eigen::Index);
template Matrix<float> decayed_from_the_start(const Matrix<float>&, const PairDecay<float>&, Eigen::Index);

}  // namespace lethe::reference
