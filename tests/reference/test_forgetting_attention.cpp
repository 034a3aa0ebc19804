// Cases that the generic suites leave out: single queries, long sequences, float, gates of zero.

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

TEST(OneQuery, IsTheRowOfTheRecurrentFormBitForBit) {
  const Head head = random_head({17, 33}, Gate::kSpiky);
  const Output softmax = softmax_attention::recurrent(head), linear = alibi::recurrent(head, 0.5),
               gated = forgetting_attention::recurrent(head);
  for (Eigen::Index row : {0, 8, 16}) {
    EXPECT_EQ(softmax_attention::one_query(head, row).values, softmax.values.row(row));
    EXPECT_EQ(alibi::one_query(head, 0.5, row).values, linear.values.row(row));
    const Output one = forgetting_attention::one_query(head, row);
    EXPECT_EQ(one.values, gated.values.row(row));
    EXPECT_EQ(one.log_normalizer[0], gated.log_normalizer[row]);
  }
}

TEST(OneQuery, RefusesARowThatIsNotThere) {
  const Head head = random_head({2, 3}, Gate::kInitial);
  for (Eigen::Index row : {-1, 2}) EXPECT_THROW(forgetting_attention::one_query(head, row), std::invalid_argument);
}

// The definition in x87's 64-bit significand, with D summed towards the past.
Output in_extended_precision(const Head& head, Eigen::Index position) {
  std::vector<long double> values(static_cast<size_t>(head.value.cols()), 0.0L);
  long double decay = 0.0L, normalizer = 0.0L;
  for (Eigen::Index j = position; j >= 0; decay += head.log_forget[j--]) {
    long double logit = 0.0L;
    for (Eigen::Index k = 0; k < head.key.cols(); ++k) {
      logit += static_cast<long double>(head.query(0, k)) * head.key(j, k);
    }
    const long double weight = std::exp(head.scale * logit + decay);
    normalizer += weight;
    for (size_t v = 0; v < values.size(); ++v) values[v] += weight * head.value(j, static_cast<Eigen::Index>(v));
  }
  Output output;
  output.values.resize(1, head.value.cols());
  for (size_t v = 0; v < values.size(); ++v) {
    output.values(0, static_cast<Eigen::Index>(v)) = static_cast<double>(values[v] / normalizer);
  }
  output.log_normalizer = Vector<double>::Constant(1, static_cast<double>(std::log(normalizer)));
  return output;
}

TEST(OneQuery, IsExactTo14DigitsAfter262144TokensForEveryKindOfGate) {
  static_assert(std::numeric_limits<long double>::digits >= 64, "the expected values need more than double precision");
  constexpr int64_t kLength = 262144;
  for (Gate gate : {Gate::kOpen, Gate::kInitial, Gate::kStrong, Gate::kSpiky, Gate::kZero}) {
    const Head head = random_head({1, kLength}, gate);
    const Output actual = forgetting_attention::one_query(head, 0);
    const Output expected = in_extended_precision(head, kLength - 1);
    const Agreement values = compare(flat(actual.values), flat(expected.values), 1e-14);
    EXPECT_TRUE(values.passed()) << gate_name(gate) << ": " << values.describe();
    const Agreement normalizer = compare(flat(actual.log_normalizer), flat(expected.log_normalizer), 1e-14);
    EXPECT_TRUE(normalizer.passed()) << gate_name(gate) << ": " << normalizer.describe();
  }
}

TEST(SoftmaxFamily, InFloatStaysWithinTheFloatBudgetOfTheDoubleForm) {
  for (Gate gate : kEveryGate) {
    const BasicHead<float> single = as_float(random_head({64, 257}, gate));
    const Head head = as_double(single);
    const Matrix<double> values_gradient = random_values_gradient(head);
    const auto expect_close = [&](const char* what, const auto& actual, const auto& expected) {
      const Agreement agreement =
          compare(flat(actual.template cast<double>().eval()), flat(expected), budget(Dtype::kFloat32), 1e-3);
      EXPECT_TRUE(agreement.passed()) << what << ", gate " << gate_name(gate) << ": " << agreement.describe();
    };
    expect_close("softmax", softmax_attention::recurrent(single).values, softmax_attention::recurrent(head).values);
    expect_close("alibi", alibi::recurrent(single, 0.5f).values, alibi::recurrent(head, 0.5).values);
    const Output expected = forgetting_attention::recurrent(head);
    expect_close("recurrent", forgetting_attention::recurrent(single).values, expected.values);
    expect_close("parallel", forgetting_attention::parallel(single).values, expected.values);
    const BasicGradients<float> actual =
        forgetting_attention::gradients(single, Matrix<float>(values_gradient.cast<float>()));
    const Gradients gradients =
        forgetting_attention::gradients(head, Matrix<double>(values_gradient.cast<float>().cast<double>()));
    expect_close("query", actual.query, gradients.query);
    expect_close("key", actual.key, gradients.key);
    expect_close("value", actual.value, gradients.value);
    expect_close("log_forget", actual.log_forget, gradients.log_forget);
  }
}

TEST(ForgettingAttention, GradientOfTheFirstGateAndOfGatesOfZeroIsExactlyZero) {
  for (Gate gate : kEveryGate) {
    for (const Head& head : random_heads({65, 65}, gate)) {
      const Gradients gradients = forgetting_attention::gradients(head, random_values_gradient(head));
      EXPECT_EQ(gradients.log_forget[0], 0.0);
      for (Eigen::Index l = 1; l < 65; ++l) {
        EXPECT_TRUE(std::isfinite(gradients.log_forget[l]));
        if (std::isinf(head.log_forget[l])) {
          EXPECT_EQ(gradients.log_forget[l], 0.0) << l;
        }
      }
    }
  }
}

TEST(ForgettingAttention, GradientOfKeysBeforeAGateOfZeroIsExactlyZero) {
  Head head = random_head({10, 30}, Gate::kInitial);
  head.log_forget[20] = -std::numeric_limits<double>::infinity();  // where the first query stands
  const Gradients gradients = forgetting_attention::gradients(head, random_values_gradient(head));
  EXPECT_EQ(gradients.key.topRows(20).norm(), 0.0);
  EXPECT_EQ(gradients.value.topRows(20).norm(), 0.0);
  EXPECT_GT(gradients.key.bottomRows(10).norm(), 0.0);
}

TEST(ForgettingAttention, RefusesGatesOfTheWrongLengthOrSign) {
  Head head = random_head({3, 5}, Gate::kInitial);
  head.log_forget.conservativeResize(3);
  EXPECT_THROW(forgetting_attention::recurrent(head), std::invalid_argument);
  EXPECT_THROW(forgetting_attention::parallel(head), std::invalid_argument);
  for (double bad : {1e-9, std::numeric_limits<double>::quiet_NaN()}) {
    head.log_forget = Vector<double>::Constant(5, bad);
    EXPECT_THROW(forgetting_attention::recurrent(head), std::invalid_argument);
    EXPECT_THROW(forgetting_attention::parallel(head), std::invalid_argument);
    EXPECT_THROW(forgetting_attention::gradients(head, Matrix<double>(3, 3)), std::invalid_argument);
  }
}

}  // namespace
}  // namespace lethe
