// The components of the Pro block, and where the gate does not act.

#include "reference/layers/kv_shift.hpp"
#include "reference/layers/rms_norm.hpp"
#include "tests/lesson/by_hand.hpp"
#include "tests/support/random_weights.hpp"

namespace lethe::lesson {
namespace {

using reference::layers::forgetting_layer;
using reference::layers::ForgettingLayerShape;
using Weights = reference::layers::ForgettingLayerWeights<double>;

constexpr Eigen::Index kWidth = 8, kHeads = 2;
constexpr ForgettingLayerShape kShape{.heads = kHeads};

Matrix<double> layer_of(const Matrix<double>& input, const Weights& weights) {
  return forgetting_layer<double>(input, weights, kShape);
}

// Rows whose first entry is 1, so that a matrix with a first column alone gives every token the same numbers.
Matrix<double> input_with_constant(uint64_t seed) {
  Matrix<double> input = random_matrix(10, kWidth, seed);
  input.col(0).setOnes();
  return input;
}

Matrix<double> always(double logit, Eigen::Index rows) {
  Matrix<double> weight = Matrix<double>::Zero(rows, kWidth);
  weight.col(0).setConstant(logit);
  return weight;
}

TEST(ProBlock, TheForgetGateCostsOneWeightVectorAndOneBiasAHead) {
  const Matrix<double> x = random_matrix(6, kWidth, 1);
  const Weights weights = random_layer(kWidth, kHeads, 2);
  EXPECT_EQ(weights.forget->size() + weights.forget_bias->size(), kHeads * (kWidth + 1));
  EXPECT_TRUE(layer_of(x, weights).allFinite());
  Weights one_a_dimension = weights;
  one_a_dimension.forget = random_matrix(kWidth, kWidth, 3);
  one_a_dimension.forget_bias = Vector<double>::Zero(kWidth).eval();
  EXPECT_THROW(layer_of(x, one_a_dimension), std::invalid_argument);
}

TEST(ProBlock, AnOutputGateOfOneIsNoGateAndOneOfAHalfHalvesTheOutput) {
  const Matrix<double> x = input_with_constant(4);
  Weights weights = random_layer(kWidth, kHeads, 5);
  const Matrix<double> gated = layer_of(x, weights);
  weights.output_gate.reset();
  const Matrix<double> ungated = layer_of(x, weights);
  weights.output_gate = always(1000.0, kWidth);
  EXPECT_TRUE(bit_equal(layer_of(x, weights), ungated));
  weights.output_gate = always(0.0, kWidth);
  EXPECT_LT(relative_error(layer_of(x, weights), 0.5 * ungated), kExact);
  EXPECT_GT(relative_error(gated, ungated), kClearlyWrong);
}

TEST(ProBlock, OutputNormMakesTheLayerIgnoreTheScaleOfValues) {
  const Matrix<double> x = random_matrix(10, kWidth, 6);
  Weights large = random_layer(kWidth, kHeads, 7);
  large.value *= 1e4;  // so that the norm's ε is negligible
  Weights larger = large;
  larger.value *= 10.0;
  EXPECT_LT(relative_error(layer_of(x, larger), layer_of(x, large)), kExact);
  large.output_norm.reset();
  larger.output_norm.reset();
  EXPECT_LT(relative_error(layer_of(x, larger), 10.0 * layer_of(x, large)), kExact);
}

TEST(ProBlock, QkNormMakesTheLayerIgnoreTheScaleOfQueriesAndKeys) {
  const Matrix<double> x = random_matrix(10, kWidth, 8);
  Weights large = random_layer(kWidth, kHeads, 9);
  large.query *= 1e4;
  large.key *= 1e4;
  Weights larger = large;
  larger.query *= 10.0;
  larger.key *= 3.0;
  EXPECT_LT(relative_error(layer_of(x, larger), layer_of(x, large)), 1e-11);
  large.query *= 1e-4, large.key *= 1e-4, large.query_norm.reset();
  larger.query *= 1e-4, larger.key *= 1e-4, larger.query_norm.reset();
  EXPECT_GT(relative_error(layer_of(x, larger), layer_of(x, large)), kClearlyWrong);
}

TEST(ProBlock, AKvShiftThatMixesNothingIsNoShift) {
  const Matrix<double> x = input_with_constant(10);
  Weights weights = random_layer(kWidth, kHeads, 11);
  const Matrix<double> shifted = layer_of(x, weights);
  weights.key_shift = weights.value_shift = always(-1000.0, kHeads);
  const Matrix<double> mixing_nothing = layer_of(x, weights);
  weights.key_shift.reset();
  weights.value_shift.reset();
  EXPECT_TRUE(bit_equal(mixing_nothing, layer_of(x, weights)));
  EXPECT_GT(relative_error(shifted, mixing_nothing), kClearlyWrong);
}

TEST(ProBlock, KeysAreNormedAfterTheShiftSoADecoderKeepsTheRawKey) {
  const Matrix<double> raw = random_matrix(6, 4, 12);
  const Matrix<double> mix = Matrix<double>::Constant(6, 1, 0.4);
  const Vector<double> ones = Vector<double>::Ones(4);
  const auto norm = [&](const Matrix<double>& rows) {
    return reference::layers::rms_norm<double>(rows, ones, 1, 1e-5);
  };
  const auto shift = [&](const Matrix<double>& rows, const Vector<double>& previous) {
    return reference::layers::kv_shift<double>(rows, mix.topRows(rows.rows()), previous);
  };
  const Vector<double> beginning = Vector<double>::Zero(4);
  const Matrix<double> keys = norm(shift(raw, beginning));
  const auto decoded_from = [&](const Matrix<double>& cache) { return norm(shift(raw.row(5), cache.row(4))); };
  EXPECT_TRUE(bit_equal(decoded_from(raw), keys.row(5)));
  EXPECT_GT(relative_error(decoded_from(keys), keys.row(5)), kClearlyWrong) << "a cache of finished keys";
  EXPECT_GT(relative_error(shift(norm(raw), beginning), keys), kClearlyWrong) << "norm before shift";
}

TEST(ProBlock, TheForgetGateActsThroughAttentionAndLeavesTheMlpAlone) {
  const std::vector<int64_t> tokens{1, 5, 2, 7, 3, 0};
  const auto weights = random_model(8, 2, kWidth, kHeads, 12, 13);
  const auto logits = [&](reference::layers::NamedWeights<double> changed) {
    return reference::layers::language_model<double>(tokens, std::move(changed), kShape);
  };
  const auto with_other_gates = [](reference::layers::NamedWeights<double> changed) {
    for (auto& [name, weight] : changed) {
      if (name.find("fgate_proj") != std::string::npos) weight.array() -= 2.0;
    }
    return changed;
  };
  EXPECT_GT(relative_error(logits(with_other_gates(weights)), logits(weights)), kClearlyWrong);

  auto mlp_alone = weights;
  for (auto& [name, weight] : mlp_alone) {
    if (name.ends_with("o_proj.weight")) weight.setZero();
  }
  EXPECT_TRUE(bit_equal(logits(with_other_gates(mlp_alone)), logits(mlp_alone)));
}

}  // namespace
}  // namespace lethe::lesson
