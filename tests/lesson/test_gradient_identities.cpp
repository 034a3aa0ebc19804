// Identities of the gradients of softmax attention and of its gate, for any input.

#include "reference/layers/sigmoid.hpp"
#include "reference/softmax_attention.hpp"
#include "tests/lesson/by_hand.hpp"
#include "tests/support/finite_differences.hpp"

namespace lethe::lesson {
namespace {

namespace forgetting_attention = reference::forgetting_attention;
namespace softmax_attention = reference::softmax_attention;

constexpr Eigen::Index kLength = 20;

// ‖sum‖ relative to the terms that cancel in it.
double cancellation(const Matrix<double>& sum, const Matrix<double>& terms) { return sum.norm() / terms.norm(); }

// ∂loss/∂logits [T, T] of the reference: where queries are unit vectors, the gradient of the keys is its transpose.
struct LogitGradients {
  Head head =
      head_of_logits(random_matrix(kLength, kLength, 1), random_head(kLength, 1, 1, Gate::kInitial, 2).log_forget);
  Matrix<double> values_gradient = random_matrix(kLength, 3, 3);
  Gradients gradients;
  Matrix<double> logits;

  LogitGradients() {
    head.value = random_matrix(kLength, 3, 4);
    gradients = forgetting_attention::gradients(head, values_gradient);
    logits = gradients.key.transpose();
  }
};

TEST(GradientIdentities, LogitGradientsAreWeightsTimesWhatExceedsTheMean) {
  const LogitGradients all;
  const Matrix<double> weights = attention_weights(all.head);
  const Matrix<double> weights_gradient = all.values_gradient * all.head.value.transpose();
  const Vector<double> mean = (weights.array() * weights_gradient.array()).rowwise().sum();
  const Matrix<double> values = forgetting_attention::parallel(all.head).values;
  const Vector<double> output_times_gradient = (values.array() * all.values_gradient.array()).rowwise().sum();
  EXPECT_LT(relative_error(output_times_gradient, mean), kExact) << "the mean needs no weights, only the output";
  const Matrix<double> expected = weights.array() * (weights_gradient.colwise() - mean).array();
  EXPECT_LT(relative_error(all.logits, expected), kExact);
}

TEST(GradientIdentities, EveryQuerysLogitGradientsSumToZero) {
  const LogitGradients all;
  EXPECT_LT(cancellation(all.logits.rowwise().sum(), all.logits), kExact);
  EXPECT_GT(cancellation(all.logits.colwise().sum(), all.logits), kClearlyWrong) << "the keys' do not";
}

TEST(GradientIdentities, TheGatesGradientIsASumOfColumnSumsAlone) {
  const LogitGradients all;
  const Vector<double> prefix_gradient = -all.logits.colwise().sum();  // dc_j: the row sums contribute nothing
  EXPECT_LT(cancellation(Matrix<double>{{prefix_gradient.sum()}}, prefix_gradient), kExact);
  const Vector<double>& found = all.gradients.log_forget;
  EXPECT_EQ(found[0], 0.0);
  Vector<double> by_prefix = Vector<double>::Zero(kLength), by_pairs = by_prefix;
  for (Eigen::Index l = 1; l < kLength; ++l) {
    by_prefix[l] = prefix_gradient.tail(kLength - l).sum();
    by_pairs[l] = all.logits.bottomLeftCorner(kLength - l, l).sum();  // i ≥ l > j
  }
  EXPECT_LT(relative_error(by_prefix, found), kExact);
  EXPECT_LT(relative_error(by_pairs, found), kExact);
}

TEST(GradientIdentities, ASoftmaxBackwardWithOneMoreKeyDimensionGivesTheGates) {
  const Head head = random_head(kLength, 4, 3, Gate::kInitial, 5);
  const Matrix<double> values_gradient = random_matrix(kLength, 3, 6);
  Head augmented = head;
  augmented.query.conservativeResize(Eigen::NoChange, 5);
  augmented.key.conservativeResize(Eigen::NoChange, 5);
  augmented.query.col(4).setConstant(1 / head.scale);
  augmented.key(0, 4) = 0.0;
  for (Eigen::Index t = 1; t < kLength; ++t) augmented.key(t, 4) = augmented.key(t - 1, 4) - head.log_forget[t];

  const Gradients expected = forgetting_attention::gradients(head, values_gradient);
  const Gradients found = softmax_attention::gradients(augmented, values_gradient);
  EXPECT_LT(relative_error(found.query.leftCols(4), expected.query), kExact);
  EXPECT_LT(relative_error(found.key.leftCols(4), expected.key), kExact);
  EXPECT_LT(relative_error(found.value, expected.value), kExact);
  // The kernel serves the forward; the gate's gradient still needs these column sums.
  Vector<double> log_forget = Vector<double>::Zero(kLength);
  for (Eigen::Index l = 1; l < kLength; ++l) log_forget[l] = -found.key.col(4).tail(kLength - l).sum();
  EXPECT_LT(relative_error(log_forget, expected.log_forget), kExact);
}

TEST(GradientIdentities, KeyGradientsSumToZeroAndValueGradientsToTheOutputs) {
  const Head head = random_head(kLength, 4, 3, Gate::kInitial, 7);
  const Matrix<double> values_gradient = random_matrix(kLength, 3, 8);
  const Gradients gradients = forgetting_attention::gradients(head, values_gradient);
  EXPECT_LT(cancellation(gradients.key.colwise().sum(), gradients.key), kExact)
      << "a common bias of all keys has no gradient";
  EXPECT_GT(cancellation(gradients.query.colwise().sum(), gradients.query), kClearlyWrong);
  EXPECT_LT(relative_error(gradients.value.colwise().sum(), values_gradient.colwise().sum()), kExact);
  const double along_query = (gradients.query.array() * head.query.array()).sum();
  const double along_key = (gradients.key.array() * head.key.array()).sum();
  EXPECT_NEAR(along_query / along_key, 1.0, 1e-10) << "queries and keys matter through their product";
}

TEST(GradientIdentities, TheGatesLogitHasTheGradientOfItsLogarithmTimesOneMinusF) {
  Head head = random_head(kLength, 4, 3, Gate::kZero, 9);
  const Matrix<double> values_gradient = random_matrix(kLength, 3, 10);
  Matrix<double> logits = 3.0 * random_matrix(kLength, 1, 11);
  const auto loss = [&] {
    head.log_forget = reference::layers::log_sigmoid(logits);
    return (forgetting_attention::parallel(head).values.array() * values_gradient.array()).sum();
  };
  const std::vector<double> measured = finite_differences(loss, std::span(logits.data(), logits.size()), false);
  loss();
  const Vector<double> gate = reference::layers::sigmoid(logits);
  const Vector<double> log_gate_gradient = forgetting_attention::gradients(head, values_gradient).log_forget;
  const Vector<double> derived = log_gate_gradient.array() * (1.0 - gate.array());
  const Vector<double> found = Eigen::Map<const Vector<double>>(measured.data(), kLength);
  EXPECT_LT(relative_error(derived, found), 1e-8);
  EXPECT_GT(relative_error(log_gate_gradient.cwiseProduct(gate), found), kClearlyWrong) << "σ in the place of 1 − σ";
}

}  // namespace
}  // namespace lethe::lesson
