// Forgetting Attention with gates that are open, closed, constant, or closed once.

#include "reference/alibi.hpp"
#include "reference/decay_bias.hpp"
#include "reference/layers/sigmoid.hpp"
#include "reference/softmax_attention.hpp"
#include "tests/lesson/by_hand.hpp"

namespace lethe::lesson {
namespace {

namespace alibi = reference::alibi;
namespace forgetting_attention = reference::forgetting_attention;
namespace softmax_attention = reference::softmax_attention;

// Σ_j F_ij of a gate σ(bias) at the end of a long text: the number of tokens that count where all logits are equal.
double effective_context(double bias) {
  constexpr Eigen::Index kLength = 6000;
  const Matrix<double> zeros = Matrix<double>::Zero(kLength, 1);
  const double log_forget = reference::layers::log_sigmoid(Matrix<double>{{bias}})(0, 0);
  const Head head{zeros.topRows(1), zeros, zeros, Vector<double>::Constant(kLength, log_forget), 1.0};
  return std::exp(forgetting_attention::parallel(head).log_normalizer[0]);
}

TEST(GateLimits, OpenGatesLeaveNoBiasAndGiveSoftmaxAttention) {
  const Head head = random_head(40, 4, 3, Gate::kZero, 1);
  const reference::DecayBias<double> bias(head.log_forget);
  for (Eigen::Index j = 0; j < 40; ++j) EXPECT_EQ(bias(39, j), 0.0);
  EXPECT_TRUE(bit_equal(forgetting_attention::recurrent(head).values, softmax_attention::recurrent(head).values));
  EXPECT_LT(relative_error(forgetting_attention::parallel(head).values, softmax_attention::parallel(head).values),
            kExact);
}

TEST(GateLimits, AConstantGateIsAlibiWithTheSlopeMinusLogF) {
  for (double forget : {0.9, 0.5, std::exp(-0.5)}) {
    Head head = random_head(40, 4, 3, Gate::kZero, 2);
    head.log_forget.setConstant(std::log(forget));
    const Matrix<double> values = forgetting_attention::parallel(head).values;
    EXPECT_LT(relative_error(alibi::parallel(head, -std::log(forget)).values, values), kExact);
    EXPECT_GT(relative_error(alibi::parallel(head, 1 - forget).values, values), kClearlyWrong)
        << "1 − f is the slope to first order only";
  }
  EXPECT_NEAR(-std::log(0.9), 0.10536, 5e-6);
}

TEST(GateLimits, NearlyOpenGatesDifferFromSoftmaxInProportionToOneMinusF) {
  Head head = random_head(32, 4, 3, Gate::kZero, 3);
  const Matrix<double> open = forgetting_attention::parallel(head).values;
  const auto difference = [&](double epsilon) {
    head.log_forget.setConstant(std::log1p(-epsilon));
    return relative_error(forgetting_attention::parallel(head).values, open);
  };
  EXPECT_NEAR(difference(1e-4) / difference(1e-5), 10.0, 0.1);
  EXPECT_NEAR(difference(1e-5) / difference(1e-6), 10.0, 0.01);
}

TEST(GateLimits, ClosedGatesLeaveTheCurrentTokenAndNotThePreviousOne) {
  Head head = random_head(24, 4, 3, Gate::kZero, 4);
  for (double log_forget : {-1e4, -kInfinity}) {
    head.log_forget.setConstant(log_forget);
    const Matrix<double> values = forgetting_attention::parallel(head).values;
    EXPECT_TRUE(bit_equal(values, head.value));
    EXPECT_GT(relative_error(values.bottomRows(23), head.value.topRows(23)), kClearlyWrong) << "the page's claim";
  }
}

TEST(GateLimits, OneClosedGateHidesAllEarlierTokensFromAllLaterQueries) {
  constexpr Eigen::Index kClosed = 9;
  const Head open = random_head(24, 4, 3, Gate::kInitial, 5);
  for (double log_forget : {-1e4, -kInfinity}) {
    Head head = open;
    head.log_forget[kClosed] = log_forget;
    const Matrix<double> values = forgetting_attention::parallel(head).values;
    const Matrix<double> weights = attention_weights(head);
    EXPECT_TRUE((weights.bottomLeftCorner(24 - kClosed, kClosed).array() == 0.0).all());
    EXPECT_TRUE((weights.col(kClosed).tail(24 - kClosed).array() > 0.0).all()) << "the token itself survives";
    EXPECT_TRUE(bit_equal(values.row(kClosed), head.value.row(kClosed)));

    Head other_past = head;
    other_past.key.topRows(kClosed) = random_matrix(kClosed, 4, 6);
    other_past.value.topRows(kClosed) = random_matrix(kClosed, 3, 7);
    EXPECT_TRUE(bit_equal(forgetting_attention::parallel(other_past).values.bottomRows(24 - kClosed),
                          values.bottomRows(24 - kClosed)));
    EXPECT_LT(relative_error(values.topRows(kClosed), forgetting_attention::parallel(open).values.topRows(kClosed)),
              kExact)
        << "earlier queries do not see the gate";

    Matrix<double> later_queries_only = random_matrix(24, 3, 8);
    later_queries_only.topRows(kClosed).setZero();
    const Gradients gradients = forgetting_attention::gradients(head, later_queries_only);
    EXPECT_TRUE((gradients.key.topRows(kClosed).array() == 0.0).all());
    EXPECT_TRUE((gradients.value.topRows(kClosed).array() == 0.0).all());
    EXPECT_GT(gradients.value.row(kClosed).norm(), 0.0);
  }
}

TEST(GateLimits, DocumentsCutByClosedGatesAttendAsIfEachWereAlone) {
  Head packed = random_head(24, 4, 3, Gate::kInitial, 9);
  packed.log_forget[10] = -kInfinity;
  const Head second{packed.query.bottomRows(14), packed.key.bottomRows(14), packed.value.bottomRows(14),
                    packed.log_forget.tail(14), packed.scale};
  EXPECT_LT(relative_error(forgetting_attention::parallel(second).values,
                           forgetting_attention::parallel(packed).values.bottomRows(14)),
            kExact);
}

TEST(GateLimits, TheFirstTokensGateIsNeverUsed) {
  Head head = random_head(24, 4, 3, Gate::kInitial, 10);
  const Matrix<double> values = forgetting_attention::parallel(head).values;
  head.log_forget[0] = -kInfinity;
  EXPECT_TRUE(bit_equal(forgetting_attention::parallel(head).values, values));
  head.log_forget[1] -= 1.0;
  EXPECT_GT(relative_error(forgetting_attention::parallel(head).values, values), kClearlyWrong);
}

TEST(GateLimits, OpenGatesLearnInProportionToOneMinusF) {
  Head head = random_head(16, 4, 3, Gate::kZero, 11);
  const Matrix<double> values_gradient = random_matrix(16, 3, 12);
  const auto bias_gradient = [&](double bias) {  // of a bias shared by all tokens
    head.log_forget.setConstant(reference::layers::log_sigmoid(Matrix<double>{{bias}})(0, 0));
    return forgetting_attention::gradients(head, values_gradient).log_forget.sum() / (1 + std::exp(bias));
  };
  const auto per_openness = [&](double bias) { return bias_gradient(bias) * (1 + std::exp(bias)); };
  EXPECT_GT(std::abs(per_openness(18.0)), 1e-2) << "the gate's logarithm has a gradient";
  EXPECT_NEAR(per_openness(12.0) / per_openness(18.0), 1.0, 1e-3);
  EXPECT_LT(std::abs(bias_gradient(18.0)), 1e-2 * std::abs(bias_gradient(12.0))) << "the gate's bias has almost none";
}

TEST(GateLimits, ABiasOfZeroRemembersTwoTokensAndABiasOfFive150) {
  EXPECT_NEAR(effective_context(0.0), 2.0, 1e-9);
  EXPECT_NEAR(effective_context(5.0), 1 + std::exp(5.0), 1e-6);
  EXPECT_NEAR(effective_context(5.0), 149.4, 0.05);
  EXPECT_NEAR(effective_context(-40.0), 1.0, 1e-9) << "closed gates: the current token alone";
}

TEST(GateLimits, LongInitForgetsToOneEthInTheAskedTimeAndSpansAlibisSlopes) {
  const auto bias_of = [](double decay_time) { return -std::log(std::expm1(1 / decay_time)); };
  EXPECT_NEAR(bias_of(2.0), 0.4328, 5e-5);
  EXPECT_NEAR(bias_of(256.0), 5.5432, 5e-5);
  for (int64_t head = 0; head < 8; ++head) {  // log-spaced from 2 to 256 over eight heads
    const double decay_time = std::exp(std::log(2.0) + std::log(128.0) * static_cast<double>(head) / 7.0);
    const double log_forget = reference::layers::log_sigmoid(Matrix<double>{{bias_of(decay_time)}})(0, 0);
    EXPECT_NEAR(decay_time * log_forget, -1.0, kExact) << head;
    EXPECT_NEAR(-log_forget / alibi::slope_of(head, 8), 1.0, kExact) << head;
  }
}

}  // namespace
}  // namespace lethe::lesson
