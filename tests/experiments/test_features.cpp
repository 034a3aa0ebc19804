// The feature maps without weights, against the reference's, and at the ends of their range.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "experiments/models/mixers/parts/features.hpp"
#include "reference/feature_map.hpp"
#include "tests/experiments/mixer_layer.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr double kFeatureBudget = 1e-13;  // double, and sums of at most 8 terms

struct MappedRows {
  Tensor rows, directions;  // [5,3,8], [6,8]
  MappedRows() {
    torch::manual_seed(5);
    rows = torch::randn({5, 3, 8}, torch::kFloat64);
    rows[0][0][0] = 0;  // the corner of ELU + 1 and ReLU
    directions = torch::randn({6, 8}, torch::kFloat64);
  }
  Matrix<double> matrix() const { return matrix_of(rows.flatten(0, 1)); }
};

TEST(Features, AreThoseOfTheReference) {
  const MappedRows in;
  const Matrix<double> u = in.matrix(), w = matrix_of(in.directions);
  const auto error = [&](const Tensor& features, const reference::FeatureMap& map, const Matrix<double>& rows) {
    return relative_error(matrix_of(features.flatten(0, 1)), map.features(rows));
  };
  namespace maps = reference::feature_map;
  EXPECT_LT(error(elu_plus_one(in.rows), maps::elu_plus_one(), u), kFeatureBudget);
  EXPECT_EQ(elu_plus_one(in.rows)[0][0][0].item<double>(), 1);
  for (const int64_t nu : {1, 2, 5}) {
    EXPECT_EQ(dpfp(in.rows, nu).size(-1), 2 * nu * 8);
    EXPECT_LT(error(dpfp(in.rows, nu), maps::dpfp(nu), u), kFeatureBudget);
  }
  const Matrix<double> scaled = u / std::pow(8.0, 0.25), unit = u.rowwise().normalized();
  EXPECT_LT(error(positive_random(in.rows, in.directions), maps::positive_random(w), scaled), kFeatureBudget);
  EXPECT_LT(error(random_fourier(in.rows, in.directions), maps::random_fourier(w), unit), kFeatureBudget);

  EXPECT_GT(error(dpfp(in.rows.roll(1, -1), 2), maps::dpfp(2), u), kClearlyWrong);
  EXPECT_GT(error(positive_random(in.rows, in.directions), maps::positive_random(w), u), kClearlyWrong);
  EXPECT_GT(error(random_fourier(in.rows, in.directions), maps::random_fourier(w), u), kClearlyWrong);
}

TEST(Features, StandForTheExponentialOfTheProductThatSoftmaxHas) {
  torch::manual_seed(6);
  const Tensor q = 0.7 * torch::randn({1, 8}, torch::kFloat64), k = 0.7 * torch::randn({1, 8}, torch::kFloat64);
  const Tensor directions = torch::randn({200000, 8}, torch::kFloat64);
  const auto product = [&](auto map) {
    return (map(q, directions) * map(k, directions)).sum().template item<double>();
  };
  const double softmax = std::exp((q * k).sum().item<double>() / std::sqrt(8.0));
  EXPECT_NEAR(product(positive_random), softmax, 0.02 * softmax);
  const double cosine = (q * k).sum().item<double>() / (q.norm() * k.norm()).item<double>();
  EXPECT_NEAR(product(random_fourier), std::exp(cosine - 1), 0.01);
}

TEST(Features, AreFiniteWithTheirGradientsWhereAnExponentialWouldOverflow) {
  const Tensor directions = torch::randn({4, 2});
  for (const auto& map : std::initializer_list<std::function<Tensor(const Tensor&)>>{
           elu_plus_one, [](const Tensor& u) { return dpfp(u, 1); },
           [&](const Tensor& u) { return positive_random(u, directions); },
           [&](const Tensor& u) { return random_fourier(u, directions); }}) {
    Tensor u = torch::tensor({{1e3, -1e3}, {0.0, 0.0}}, torch::kFloat32).requires_grad_();
    const Tensor features = map(u);
    features.sum().backward();
    EXPECT_TRUE(torch::isfinite(features).all().item<bool>());
    EXPECT_TRUE(torch::isfinite(u.grad()).all().item<bool>());
  }
  const Tensor low = elu_plus_one(torch::tensor({-30.0f}));
  EXPECT_NEAR(low.item<double>(), std::exp(-30.0), 1e-6 * std::exp(-30.0)) << "and not 1 − 1";
}

TEST(Features, OfSixteenBitsAreTakenInThirtyTwo) {
  const Tensor u = torch::randn({3, 8}).to(torch::kBFloat16);
  EXPECT_EQ(elu_plus_one(u).scalar_type(), torch::kFloat32);
  EXPECT_TRUE(dpfp(u, 2).equal(dpfp(u.to(torch::kFloat32), 2)));
}

}  // namespace
}  // namespace lethe
