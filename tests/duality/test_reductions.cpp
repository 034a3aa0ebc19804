// The special cases of each family's general member.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/agreement.hpp"
#include "reference/alibi.hpp"
#include "reference/forgetting_attention.hpp"
#include "reference/softmax_attention.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

namespace alibi = reference::alibi;
namespace forgetting_attention = reference::forgetting_attention;
namespace softmax_attention = reference::softmax_attention;

constexpr Lengths kReductionLengths{64, 65};

void expect_same(const Output& actual, const Output& expected) {
  EXPECT_TRUE(compare(flat(actual.values), flat(expected.values), budget(Dtype::kFloat64)).passed());
  EXPECT_TRUE(compare(flat(actual.log_normalizer), flat(expected.log_normalizer), budget(Dtype::kFloat64)).passed());
}

void expect_same(const Gradients& actual, const Gradients& expected) {
  EXPECT_TRUE(compare(flat(actual.query), flat(expected.query), budget(Dtype::kFloat64)).passed());
  EXPECT_TRUE(compare(flat(actual.key), flat(expected.key), budget(Dtype::kFloat64)).passed());
  EXPECT_TRUE(compare(flat(actual.value), flat(expected.value), budget(Dtype::kFloat64)).passed());
}

TEST(ForgettingAttention, EqualsSoftmaxAttentionWhenNoGateForgets) {
  for (const Head& head : random_heads(kReductionLengths, Gate::kZero)) {
    const Matrix<double> values_gradient = random_values_gradient(head);
    EXPECT_EQ(forgetting_attention::recurrent(head).values, softmax_attention::recurrent(head).values);
    expect_same(forgetting_attention::parallel(head), softmax_attention::parallel(head));
    expect_same(forgetting_attention::gradients(head, values_gradient),
                softmax_attention::gradients(head, values_gradient));
  }
}

TEST(ForgettingAttention, EqualsAlibiWhenTheGateIsConstant) {
  for (double slope : {1e-4, 0.25, 1.0 / 3.0, 7.0}) {
    for (Head head : random_heads(kReductionLengths, Gate::kZero)) {
      head.log_forget.setConstant(-slope);
      const Matrix<double> values_gradient = random_values_gradient(head);
      expect_same(forgetting_attention::recurrent(head), alibi::recurrent(head, slope));
      expect_same(forgetting_attention::parallel(head), alibi::parallel(head, slope));
      expect_same(forgetting_attention::gradients(head, values_gradient),
                  alibi::gradients(head, slope, values_gradient));
    }
  }
}

TEST(Alibi, EqualsSoftmaxAttentionWhenTheSlopeIsZero) {
  for (const Head& head : random_heads(kReductionLengths, Gate::kZero)) {
    const Matrix<double> values_gradient = random_values_gradient(head);
    EXPECT_EQ(alibi::recurrent(head, 0.0).values, softmax_attention::recurrent(head).values);
    expect_same(alibi::parallel(head, 0.0), softmax_attention::parallel(head));
    expect_same(alibi::gradients(head, 0.0, values_gradient), softmax_attention::gradients(head, values_gradient));
  }
}

TEST(ForgettingAttention, ReturnsTheTokensOwnValueWhenEveryGateForgetsEverything) {
  for (double log_forget : {-1e4, -std::numeric_limits<double>::infinity()}) {
    Head head = random_head({65, 65}, Gate::kZero);
    head.log_forget.setConstant(log_forget);
    EXPECT_EQ(forgetting_attention::recurrent(head).values, head.value);
    EXPECT_EQ(forgetting_attention::parallel(head).values, head.value);
    const Gradients gradients = forgetting_attention::gradients(head, random_values_gradient(head));
    EXPECT_EQ(gradients.value, random_values_gradient(head));
    EXPECT_EQ(gradients.log_forget, Vector<double>::Zero(65));
  }
}

TEST(ForgettingAttention, SeparatesDocumentsWhereAGateIsZero) {
  Head packed = random_head({40, 40}, Gate::kInitial);
  packed.log_forget[15] = -std::numeric_limits<double>::infinity();
  Head first = packed, second = packed;
  for (auto* document : {&first, &second}) {
    const Eigen::Index start = document == &first ? 0 : 15, length = document == &first ? 15 : 25;
    document->query = packed.query.middleRows(start, length).eval();
    document->key = packed.key.middleRows(start, length).eval();
    document->value = packed.value.middleRows(start, length).eval();
    document->log_forget = packed.log_forget.segment(start, length).eval();
  }
  Matrix<double> alone(40, packed.value.cols());
  alone << forgetting_attention::recurrent(first).values, forgetting_attention::recurrent(second).values;
  EXPECT_EQ(forgetting_attention::recurrent(packed).values, alone);
  const Output parallel = forgetting_attention::parallel(packed);
  EXPECT_TRUE(compare(flat(parallel.values), flat(alone), budget(Dtype::kFloat64)).passed());
}

TEST(Alibi, SlopesOfEightHeadsHalveFromOneHalfTo256th) {
  for (int64_t head = 0; head < 8; ++head) EXPECT_EQ(alibi::slope_of(head, 8), std::ldexp(1.0, -1 - head));
  EXPECT_EQ(alibi::slope_of(0, 16), std::sqrt(0.5));
  EXPECT_THROW(alibi::slope_of(8, 8), std::invalid_argument);
  EXPECT_THROW(alibi::recurrent(random_head({2, 2}, Gate::kZero), -0.5), std::invalid_argument);
}

}  // namespace
}  // namespace lethe
