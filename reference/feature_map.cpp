#include "reference/feature_map.hpp"

#include <cmath>
#include <stdexcept>
#include <utility>

#include "reference/biased_softmax.hpp"

namespace lethe::reference {

Head with_features(Head head, const FeatureMap& map) {
  head.query = map.features(head.query);
  head.key = map.features(head.key);
  return head;
}

Gradients through_features(const Head& head, const FeatureMap& map, Gradients gradients) {
  gradients.query = map.gradient(head.query, gradients.query);
  gradients.key = map.gradient(head.key, gradients.key);
  return gradients;
}

namespace feature_map {
namespace {

using Rows = Matrix<double>;

void expect_columns(Eigen::Index expected, const Rows& x) {
  expect_size("x", "columns, as the feature map reads", expected, x.cols());
}

void expect_bias(const Rows& weight, const Vector<double>& bias) {
  expect_size("bias", "entries, one a row of weight", weight.rows(), bias.size());
}

// 1 where the feature is active. [T,M]
Rows active(const Rows& weight, const Vector<double>& bias, const Rows& x) {
  expect_bias(weight, bias);
  expect_columns(weight.cols(), x);
  return (((x * weight.transpose()).rowwise() + bias.transpose()).array() > 0).cast<double>();
}

// ReLU([x, −x]). [T,2K]
Rows both_signs(const Rows& x) {
  Rows result(x.rows(), 2 * x.cols());
  result << x.cwiseMax(0.0), (-x).cwiseMax(0.0);
  return result;
}

// Column i of the result is column i + n, cyclic.
Rows rolled(const Rows& rows, Eigen::Index n) {
  Rows result(rows.rows(), rows.cols());
  for (Eigen::Index i = 0; i < rows.cols(); ++i) result.col(i) = rows.col((i + n) % rows.cols());
  return result;
}

Vector<double> positive_sums(const Rows& features) {
  Vector<double> sums = Vector<double>::Zero(features.rows());
  for (Eigen::Index row = 0; row < sums.size(); ++row) {
    for (double x : features.row(row)) sums[row] += x;  // Eigen's order depends on where the row lies in memory
    if (sums[row] > 0) continue;
    throw std::invalid_argument("features: expected a sum above 0 in every row, found " + std::to_string(sums[row]) +
                                " in row " + std::to_string(row));
  }
  return sums;
}

}  // namespace

FeatureMap identity() {
  return {"identity", [](const Rows& x) { return x; }, [](const Rows&, const Rows& g) { return g; }};
}

FeatureMap elu_plus_one() {
  return {"elu_plus_one",
          [](const Rows& x) -> Rows { return x.unaryExpr([](double a) { return a > 0 ? a + 1 : std::exp(a); }); },
          [](const Rows& x, const Rows& g) -> Rows {
            return g.cwiseProduct(x.unaryExpr([](double a) { return a > 0 ? 1 : std::exp(a); }));
          }};
}

FeatureMap relu(Matrix<double> weight, Vector<double> bias) {
  expect_bias(weight, bias);
  return {"relu",
          [=](const Rows& x) -> Rows {
            expect_columns(weight.cols(), x);
            return ((x * weight.transpose()).rowwise() + bias.transpose()).cwiseMax(0.0);
          },
          [=](const Rows& x, const Rows& g) -> Rows { return active(weight, bias, x).cwiseProduct(g) * weight; }};
}

ReluGradients relu_parameter_gradients(const Matrix<double>& weight, const Vector<double>& bias,
                                       const Matrix<double>& x, const Matrix<double>& features_gradient) {
  const Rows gradient = active(weight, bias, x).cwiseProduct(features_gradient);
  return {gradient.transpose() * x, gradient.colwise().sum()};
}

FeatureMap dpfp(Eigen::Index nu) {
  if (nu < 1) throw std::invalid_argument("nu: expected >= 1, found " + std::to_string(nu));
  return {"dpfp",
          [=](const Rows& x) -> Rows {
            const Rows r = both_signs(x);
            Rows result(x.rows(), nu * r.cols());
            for (Eigen::Index n = 1; n <= nu; ++n) {
              result.middleCols((n - 1) * r.cols(), r.cols()) = r.cwiseProduct(rolled(r, n));
            }
            return result;
          },
          [=](const Rows& x, const Rows& g) -> Rows {
            const Rows r = both_signs(x);
            Rows of_r = Rows::Zero(r.rows(), r.cols());
            for (Eigen::Index n = 1; n <= nu; ++n) {
              const Rows part = g.middleCols((n - 1) * r.cols(), r.cols());
              const Eigen::Index back = (r.cols() - n % r.cols()) % r.cols();
              of_r += part.cwiseProduct(rolled(r, n)) + rolled(part.cwiseProduct(r), back);
            }
            const auto sign = x.array().sign();
            return sign.max(0.0) * of_r.leftCols(x.cols()).array() + sign.min(0.0) * of_r.rightCols(x.cols()).array();
          }};
}

FeatureMap positive_random(Matrix<double> directions) {
  const auto features = [directions](const Rows& x) -> Rows {
    expect_columns(directions.cols(), x);
    const Vector<double> half_norms = 0.5 * x.rowwise().squaredNorm();
    const Rows exponents = (x * directions.transpose()).colwise() - half_norms;
    return exponential(exponents) / std::sqrt(static_cast<double>(directions.rows()));
  };
  return {"positive_random", features, [=](const Rows& x, const Rows& g) -> Rows {
            const Rows of_exponents = features(x).cwiseProduct(g);
            const Vector<double> sums = of_exponents.rowwise().sum();
            return of_exponents * directions - sums.asDiagonal() * x;
          }};
}

FeatureMap random_fourier(Matrix<double> directions) {
  const Eigen::Index count = directions.rows();
  const double scale = 1.0 / std::sqrt(static_cast<double>(count));
  return {"random_fourier",
          [=](const Rows& x) -> Rows {
            expect_columns(directions.cols(), x);
            const Rows angles = x * directions.transpose();
            Rows result(x.rows(), 2 * count);
            result << scale * angles.array().sin(), scale * angles.array().cos();
            return result;
          },
          [=](const Rows& x, const Rows& g) -> Rows {
            expect_columns(directions.cols(), x);
            const Eigen::ArrayXXd angles = x * directions.transpose();
            const Rows of_angles = g.leftCols(count).array() * angles.cos() - g.rightCols(count).array() * angles.sin();
            return scale * of_angles * directions;
          }};
}

FeatureMap sum_normalized(FeatureMap map) {
  const auto features = [map](const Rows& x) -> Rows {
    const Rows plain = map.features(x);
    return positive_sums(plain).cwiseInverse().asDiagonal() * plain;
  };
  return {"sum_normalized " + map.name, features, [=](const Rows& x, const Rows& g) -> Rows {
            const Rows normalized = features(x);
            const Vector<double> mean = g.cwiseProduct(normalized).rowwise().sum();
            const Vector<double> sums = positive_sums(map.features(x));
            return map.gradient(x, sums.cwiseInverse().asDiagonal() * (g.colwise() - mean));
          }};
}

}  // namespace feature_map
}  // namespace lethe::reference
