// Feature maps: by hand, against finite differences, and against the kernels that they approximate.

#include "reference/feature_map.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/linear_attention.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/heads.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {
namespace {

namespace feature_map = reference::feature_map;
namespace linear_attention = reference::linear_attention;
using reference::FeatureMap;
using reference::Normalized;

constexpr Eigen::Index kDim = 5;

// Every map on vectors of kDim entries; no sum norm for those whose features may all be zero.
std::vector<FeatureMap> every_map() {
  const auto relu = [](double bias) {
    return feature_map::relu(random_matrix(7, kDim, 1), Vector<double>::Constant(7, bias));
  };
  return {feature_map::identity(),
          feature_map::elu_plus_one(),
          relu(0.1),
          feature_map::dpfp(1),
          feature_map::dpfp(3),
          feature_map::positive_random(random_matrix(6, kDim, 2)),
          feature_map::random_fourier(random_matrix(6, kDim, 3)),
          feature_map::sum_normalized(feature_map::elu_plus_one()),
          feature_map::sum_normalized(relu(4.0)),
          feature_map::sum_normalized(feature_map::dpfp(3))};
}

// No entry is so near zero that a difference crosses the kink of a ReLU.
Matrix<double> inputs(Eigen::Index rows, uint64_t seed) {
  return random_matrix(rows, kDim, seed).unaryExpr([](double x) { return x + std::copysign(0.01, x); });
}

TEST(FeatureMap, ByHand) {
  const Matrix<double> x{{2.0, -3.0}};
  EXPECT_EQ(feature_map::identity().features(x), x);
  EXPECT_EQ(feature_map::elu_plus_one().features(x), (Matrix<double>{{3.0, std::exp(-3.0)}}));
  // W x + b = (2 − 3 + 2, −4 + 1, −3 + 5) = (1, −3, 2)
  const FeatureMap relu = feature_map::relu(Matrix<double>{{1, 1}, {-2, 0}, {0, 1}}, Vector<double>{{2.0, 1.0, 5.0}});
  EXPECT_EQ(relu.features(x), (Matrix<double>{{1.0, 0.0, 2.0}}));
  // r = (2, 0, 0, 3): r_i r_{i+1} = (0, 0, 0, 3·2), r_i r_{i+2} = (0, 0, 0, 0), r_i r_{i+3} = (2·3, 0, 0, 0)
  EXPECT_EQ(feature_map::dpfp(1).features(x), (Matrix<double>{{0, 0, 0, 6}}));
  EXPECT_EQ(feature_map::dpfp(3).features(x), (Matrix<double>{{0, 0, 0, 6, 0, 0, 0, 0, 6, 0, 0, 0}}));
  EXPECT_EQ(feature_map::sum_normalized(relu).features(x), (Matrix<double>{{1 / 3.0, 0.0, 2 / 3.0}}));
  // w·x = 2 − 3 = −1, |x|²/2 = 13/2
  const Matrix<double> direction{{1.0, 1.0}};
  EXPECT_NEAR(feature_map::positive_random(direction).features(x)(0, 0), std::exp(-1 - 6.5), 1e-17);
  EXPECT_EQ(feature_map::random_fourier(direction).features(x), (Matrix<double>{{std::sin(-1.0), std::cos(-1.0)}}));
}

TEST(FeatureMap, GradientsEqualFiniteDifferences) {
  for (const FeatureMap& map : every_map()) {
    Matrix<double> x = inputs(4, 4);
    const Matrix<double> features_gradient = random_matrix(4, map.features(x).cols(), 5);
    const auto loss = [&] { return map.features(x).cwiseProduct(features_gradient).sum(); };
    const std::vector<double> expected = finite_differences(loss, {x.data(), static_cast<size_t>(x.size())}, false);
    const Matrix<double> gradient = map.gradient(x, features_gradient);
    const Agreement agreement = compare(flat(gradient), expected, 1e-9);
    EXPECT_TRUE(agreement.passed()) << map.name << ": " << agreement.describe();
    const Matrix<double> wrong = map.gradient(x, 1.0001 * features_gradient);
    EXPECT_GT(compare(flat(wrong), expected, 1e-9).share(), 3.0) << map.name;
  }
}

TEST(FeatureMap, GradientsOfTheLearnedParametersEqualFiniteDifferences) {
  Matrix<double> weight = random_matrix(7, kDim, 6);
  Vector<double> bias = random_matrix(7, 1, 7);
  const Matrix<double> x = inputs(9, 8), features_gradient = random_matrix(9, 7, 9);
  const auto loss = [&] { return feature_map::relu(weight, bias).features(x).cwiseProduct(features_gradient).sum(); };
  const auto gradients = feature_map::relu_parameter_gradients(weight, bias, x, features_gradient);
  const auto of_weight = finite_differences(loss, {weight.data(), static_cast<size_t>(weight.size())}, false);
  const auto of_bias = finite_differences(loss, {bias.data(), static_cast<size_t>(bias.size())}, false);
  EXPECT_TRUE(compare(flat(gradients.weight), of_weight, 1e-9).passed());
  EXPECT_TRUE(compare(flat(gradients.bias), of_bias, 1e-9).passed());
}

TEST(FeatureMap, EachGivesLinearAttentionItsFormsAndGradients) {
  for (const FeatureMap& map : every_map()) {
    Head head = random_head({6, 9}, Gate::kInitial);
    head.query = inputs(6, 10);
    head.key = inputs(9, 11);
    head.initial_state.resize(0, 0);
    const auto values = [&] { return linear_attention::recurrent(with_features(head, map), Normalized::kNo).values; };
    const Head mapped = with_features(head, map);
    EXPECT_LT(relative_error(linear_attention::parallel(mapped, Normalized::kNo).values, values()), kExact) << map.name;

    const Matrix<double> values_gradient = random_values_gradient(head);
    Gradients gradients =
        through_features(head, map, linear_attention::gradients(mapped, Normalized::kNo, values_gradient));
    for (reference::Input input : {reference::Input::kQuery, reference::Input::kKey, reference::Input::kValue}) {
      const auto expected =
          finite_differences([&] { return values().cwiseProduct(values_gradient).sum(); }, entries(head, input), false);
      const Agreement agreement = compare(entries(gradients, input), expected, 1e-9);
      EXPECT_TRUE(agreement.passed()) << map.name << ", " << input_name(input) << ": " << agreement.describe();
    }
  }
}

TEST(FeatureMap, DpfpHasTwoNuTimesKFeaturesNoneNegativeAndMostZero) {
  const Matrix<double> x = inputs(100, 12);
  for (Eigen::Index nu : {1, 2, 3}) {
    const Matrix<double> features = feature_map::dpfp(nu).features(x);
    EXPECT_EQ(features.cols(), 2 * nu * kDim);
    EXPECT_GE(features.minCoeff(), 0.0);
    // An entry is r_i r_j of independent signs: both above zero in a quarter of all pairs, never where j stands for −x_i.
    const double share = (features.array() > 0).cast<double>().mean();
    EXPECT_GT(share, 0.15);
    EXPECT_LT(share, 0.35);
  }
}

TEST(FeatureMap, PositiveRandomFeaturesHaveTheExponentialKernelAsMean) {
  constexpr Eigen::Index kDirections = 200000;
  const FeatureMap map = feature_map::positive_random(random_matrix(kDirections, kDim, 13));
  const Matrix<double> q = 0.5 * random_matrix(6, kDim, 14), k = 0.5 * random_matrix(6, kDim, 15);
  const Matrix<double> of_q = map.features(q), of_k = map.features(k);
  for (Eigen::Index i = 0; i < 6; ++i) {
    // The mean of kDirections independent terms, and how far chance moves it.
    const Eigen::ArrayXd terms = of_q.row(i).array() * of_k.row(i).array() * static_cast<double>(kDirections);
    const double deviation = std::sqrt((terms - terms.mean()).square().mean() / static_cast<double>(kDirections));
    const double kernel = std::exp(q.row(i).dot(k.row(i)));
    EXPECT_NEAR(terms.mean(), kernel, 4.5 * deviation);
    const double without_the_norms = terms.mean() * std::exp(0.5 * (q.row(i).squaredNorm() + k.row(i).squaredNorm()));
    EXPECT_GT(std::abs(without_the_norms - kernel), 13.5 * deviation) << "expected the control to differ";
  }
}

TEST(FeatureMap, RandomFourierFeaturesHaveLengthOneAndTheGaussianKernelAsMean) {
  constexpr Eigen::Index kDirections = 200000;
  for (double sigma : {0.7, 1.5}) {
    const FeatureMap map = feature_map::random_fourier(random_matrix(kDirections, kDim, 16) / sigma);
    const Matrix<double> q = 0.5 * random_matrix(6, kDim, 17), k = 0.5 * random_matrix(6, kDim, 18);
    const Matrix<double> of_q = map.features(q), of_k = map.features(k);
    for (Eigen::Index i = 0; i < 6; ++i) {
      const double kernel = std::exp(-0.5 * (q.row(i) - k.row(i)).squaredNorm() / (sigma * sigma));
      // A term cos(w·(q − k)) has a variance of at most one.
      EXPECT_NEAR(of_q.row(i).dot(of_k.row(i)), kernel, 4.5 / std::sqrt(static_cast<double>(kDirections)));
      EXPECT_NEAR(of_q.row(i).squaredNorm(), 1.0, kExact);
    }
  }
}

TEST(FeatureMap, SumNormBoundsTheLengthOfNonnegativeFeaturesFromBothSides) {
  const Matrix<double> features = feature_map::sum_normalized(feature_map::dpfp(2)).features(inputs(200, 19));
  for (Eigen::Index row = 0; row < features.rows(); ++row) {
    EXPECT_NEAR(features.row(row).sum(), 1.0, kExact);
    EXPECT_LE(features.row(row).squaredNorm(), 1.0 + kExact);
    EXPECT_GE(features.row(row).squaredNorm(), 1.0 / static_cast<double>(features.cols()) - kExact);
  }
}

TEST(FeatureMap, OneInputInSixteenHasNoPositiveFeatureAmongFourRelus) {
  // Where T2FW's gated rule with a normalizer has states of zero, its output is 0/0 at this share of the tokens.
  const Matrix<double> weight = random_matrix(4, 64, 20), x = random_matrix(20000, 64, 21);
  const Matrix<double> features = feature_map::relu(weight, Vector<double>::Zero(4)).features(x);
  const double share = (features.rowwise().sum().array() == 0).cast<double>().mean();
  EXPECT_NEAR(share, 1 / 16.0, 0.02);  // the four directions are nearly orthogonal

  Head head = random_head({3, 3}, Gate::kInitial);
  head.initial_state.resize(0, 0);
  head.initial_normalizer.resize(0);
  head.query.row(1).setConstant(-1.0);
  const FeatureMap map = feature_map::relu(Matrix<double>::Identity(kDim, kDim), Vector<double>::Zero(kDim));
  EXPECT_THROW(linear_attention::recurrent(with_features(head, map), Normalized::kYes), std::invalid_argument);
  EXPECT_NO_THROW(linear_attention::recurrent(with_features(head, map), Normalized::kNo));
}

TEST(FeatureMap, RefusesInputsOfAWrongShape) {
  const Matrix<double> x = inputs(2, 22), wider = random_matrix(2, kDim + 1, 23);
  EXPECT_THROW(feature_map::relu(Matrix<double>::Zero(7, kDim), Vector<double>::Zero(6)), std::invalid_argument);
  EXPECT_THROW(feature_map::relu(Matrix<double>::Zero(7, kDim), Vector<double>::Zero(7)).features(wider),
               std::invalid_argument);
  EXPECT_THROW(feature_map::positive_random(Matrix<double>::Zero(7, kDim)).features(wider), std::invalid_argument);
  EXPECT_THROW(feature_map::random_fourier(Matrix<double>::Zero(7, kDim)).features(wider), std::invalid_argument);
  EXPECT_THROW(feature_map::dpfp(0), std::invalid_argument);
  const FeatureMap closed = feature_map::relu(Matrix<double>::Zero(7, kDim), Vector<double>::Constant(7, -1.0));
  EXPECT_THROW(feature_map::sum_normalized(closed).features(x), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
