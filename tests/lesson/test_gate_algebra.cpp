// The forget gate as a product, a sum of logarithms, a bias on the logits, one number a key.

#include "reference/decay_bias.hpp"
#include "reference/layers/sigmoid.hpp"
#include "reference/softmax_attention.hpp"
#include "tests/lesson/by_hand.hpp"

namespace lethe::lesson {
namespace {

namespace forgetting_attention = reference::forgetting_attention;
namespace softmax_attention = reference::softmax_attention;

// c_t = Σ_{1 ≤ l ≤ t} log f_l
Vector<double> prefix_sum(const Vector<double>& log_forget) {
  Vector<double> sum = Vector<double>::Zero(log_forget.size());
  for (Eigen::Index t = 1; t < sum.size(); ++t) sum[t] = sum[t - 1] + log_forget[t];
  return sum;
}

Matrix<double> softmax_with_bias_per_key(Head head, const Vector<double>& bias) {
  head.query.conservativeResize(Eigen::NoChange, head.query.cols() + 1);
  head.key.conservativeResize(Eigen::NoChange, head.key.cols() + 1);
  head.query.rightCols(1).setConstant(1 / head.scale);
  head.key.rightCols(1) = bias;
  return softmax_attention::parallel(head).values;
}

TEST(GateAlgebra, KeepMassIsAProductADifferenceOfPrefixSumsAndARecursionAlike) {
  const Head head = random_head(30, 2, 2, Gate::kInitial, 1);
  const Matrix<double> mass = keep_masses(head.log_forget);
  const reference::DecayBias<double> bias(head.log_forget);
  for (Eigen::Index i = 0; i < 30; ++i) {
    EXPECT_EQ(mass(i, i), 1.0);
    EXPECT_EQ(bias(i, i), 0.0);
    for (Eigen::Index j = 0; j < i; ++j) {
      EXPECT_NEAR(std::exp(bias(i, j)) / mass(i, j), 1.0, kExact);
      EXPECT_NEAR(std::exp(head.log_forget[i]) * mass(i - 1, j) / mass(i, j), 1.0, kExact);
      const Eigen::Index between = (i + j) / 2;
      EXPECT_NEAR(mass(i, between) * mass(between, j) / mass(i, j), 1.0, kExact);
    }
  }
}

TEST(GateAlgebra, TheRatioFormAndTheLogitFormAreOneFunction) {
  const Head head = random_head(20, 4, 3, Gate::kInitial, 2);
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  EXPECT_LT(relative_error(ratio_form(head, keep_masses(head.log_forget)), values), kExact);

  Vector<double> one_late = head.log_forget;
  one_late.tail(19) = head.log_forget.head(19);
  EXPECT_GT(relative_error(ratio_form(head, keep_masses(one_late)), values), kClearlyWrong);
}

TEST(GateAlgebra, ThreeTokensByHandGiveOneNineFifthsAndFortyOneThirteenths) {
  const double log2 = std::log(2.0);
  const Head head{Matrix<double>{{1}, {1}, {1}}, Matrix<double>{{0}, {log2}, {0}}, Matrix<double>{{1}, {2}, {4}},
                  Vector<double>{{0, -log2, -2 * log2}}, 1.0};
  const Matrix<double> expected{{1}, {9.0 / 5}, {41.0 / 13}};
  EXPECT_LT(relative_error(forgetting_attention::parallel(head).values, expected), kExact);
  EXPECT_LT(relative_error(forgetting_attention::recurrent(head).values, expected), kExact);
}

TEST(GateAlgebra, TheGateIsAnAdditiveBiasWhoseSlopeTheDataChoose) {
  const Head head = random_head(20, 4, 3, Gate::kInitial, 3);
  const reference::DecayBias<double> bias(head.log_forget);
  for (Eigen::Index j = 0; j + 1 < 20; ++j) {
    EXPECT_NEAR(bias(19, j) - bias(19, j + 1), head.log_forget[j + 1], kExact) << "the slope at " << j;
  }
  Matrix<double> logits = head.scale * head.query * head.key.transpose();
  for (Eigen::Index i = 0; i < 20; ++i) {
    for (Eigen::Index j = 0; j <= i; ++j) logits(i, j) += bias(i, j);
  }
  const Head biased = head_of_logits(logits, Vector<double>::Zero(20));
  EXPECT_LT(relative_error(softmax_attention::parallel(biased).values * head.value,
                           forgetting_attention::parallel(head).values),
            kExact);
}

TEST(GateAlgebra, OneBiasAKeyIsEnoughBecauseTheQuerysTermCancels) {
  const Head head = random_head(20, 4, 3, Gate::kInitial, 4);
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  const Vector<double> c = prefix_sum(head.log_forget);
  EXPECT_LT(relative_error(softmax_with_bias_per_key(head, -c), values), kExact);
  EXPECT_GT(relative_error(softmax_with_bias_per_key(head, c), values), kClearlyWrong) << "the wrong sign";
  const Vector<double> shifted = 5.0 - c.array();
  EXPECT_LT(relative_error(softmax_with_bias_per_key(head, shifted), values), kExact) << "a constant cancels too";
}

TEST(GateAlgebra, TheLogNormalizerOfTheBiasPerKeyFormLacksTheQuerysPrefixSum) {
  Head head = random_head(20, 4, 3, Gate::kInitial, 5);
  const Vector<double> with_gate = forgetting_attention::parallel(head).log_normalizer;
  const Vector<double> c = prefix_sum(head.log_forget);
  head.query.conservativeResize(Eigen::NoChange, 5);
  head.key.conservativeResize(Eigen::NoChange, 5);
  head.query.col(4).setConstant(1 / head.scale);
  head.key.col(4) = -c;
  EXPECT_LT(relative_error(softmax_attention::parallel(head).log_normalizer + c, with_gate), kExact);
}

TEST(GateAlgebra, TheUnscaledLogitsOfThePageAreTheCaseOfScaleOne) {
  Head head = random_head(20, 4, 3, Gate::kInitial, 6);
  const Matrix<double> scaled = forgetting_attention::parallel(head).values;
  Head page = head;
  page.scale = 1.0;
  EXPECT_GT(relative_error(forgetting_attention::parallel(page).values, scaled), kClearlyWrong);
  page.query *= head.scale;
  EXPECT_LT(relative_error(forgetting_attention::parallel(page).values, scaled), kExact);
}

TEST(GateAlgebra, TheLogGateStaysFiniteWhereTheGateUnderflows) {
  const Matrix<double> logits{{-700.0, -5.0, 0.0, 5.0, 30.0}};
  const Matrix<double> gates = reference::layers::sigmoid(logits);
  EXPECT_TRUE((gates.array() > 0.0).all());
  EXPECT_TRUE((gates.array() < 1.0).all());

  const Matrix<double> underflowing{{-1000.0}};
  EXPECT_EQ(reference::layers::sigmoid(underflowing)(0, 0), 0.0);
  EXPECT_EQ(reference::layers::log_sigmoid(underflowing)(0, 0), -1000.0);

  // Two tokens, the older with a logit 1000 above: at log f = −1000 they weigh the same, where log(σ) would have cut.
  const Vector<double> log_forget{{0.0, -1000.0}};
  const Head head = head_of_logits(Matrix<double>{{0.0, 0.0}, {1000.0, 0.0}}, log_forget);
  EXPECT_NEAR(attention_weights(head)(1, 0), 0.5, kExact);
}

TEST(GateAlgebra, AllDimensionsOfAValueShareOneGate) {
  Head head = random_head(16, 4, 2, Gate::kInitial, 7);
  head.value.col(1) = head.value.col(0);
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  EXPECT_TRUE(bit_equal(values.col(0), values.col(1)));

  // A gate for each dimension would give equal columns different results: it is no bias on shared logits.
  Head other_gate = head;
  other_gate.log_forget *= 3.0;
  EXPECT_GT(relative_error(forgetting_attention::parallel(other_gate).values.col(1), values.col(0)), kClearlyWrong);
}

TEST(GateAlgebra, NoBiasOnTheLogitsDoesWhatAGateOnTheOutputDoes) {
  // Attention averages: a common value is unchanged by any gate in the logits, and changed by a gate on the output.
  Head head = random_head(16, 4, 2, Gate::kStrong, 8);
  head.value.setOnes();
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  EXPECT_LT(relative_error(values, Matrix<double>::Ones(16, 2)), kExact);
  const Matrix<double> gated_output = head.log_forget.array().exp().matrix().asDiagonal() * values;
  EXPECT_GT(relative_error(gated_output, values), kClearlyWrong);
}

}  // namespace
}  // namespace lethe::lesson
