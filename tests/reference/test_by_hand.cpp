// Each member of the softmax family on two or three tokens, worked by hand. One dimension, so that a logit is q·k.

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "reference/alibi.hpp"
#include "reference/forgetting_attention.hpp"
#include "reference/softmax_attention.hpp"

namespace lethe {
namespace {

namespace alibi = reference::alibi;
namespace forgetting_attention = reference::forgetting_attention;
namespace softmax_attention = reference::softmax_attention;

constexpr double kLog2 = std::numbers::ln2;

Vector<double> vector(std::initializer_list<double> entries) {
  Vector<double> result(entries.size());
  std::ranges::copy(entries, result.begin());
  return result;
}

// Queries of one; the given keys, values and gates.
Head three_tokens(std::initializer_list<double> keys, std::initializer_list<double> values,
                  std::initializer_list<double> gates) {
  Head head;
  head.query = vector({1, 1, 1});
  head.key = vector(keys);
  head.value = vector(values);
  head.log_forget = vector(gates).array().log();
  return head;
}

void expect_near(const Matrix<double>& actual, std::initializer_list<double> expected) {
  ASSERT_EQ(static_cast<size_t>(actual.size()), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual.data()[i], expected.begin()[i], 1e-15) << "row " << i;
}

TEST(SoftmaxAttention, ByHand) {
  // Weights (1), (1, 2), (1, 2, 1).
  const Head head = three_tokens({0, kLog2, 0}, {1, 4, 3}, {});
  for (const Output& output : {softmax_attention::recurrent(head), softmax_attention::parallel(head)}) {
    expect_near(output.values, {1, (1 + 2 * 4) / 3.0, (1 + 2 * 4 + 3) / 4.0});
    expect_near(output.log_normalizer, {0, std::log(3.0), std::log(4.0)});
  }
}

TEST(Alibi, ByHand) {
  // Slope log 2 halves a weight with every token: (1), (1/2, 1), (1/4, 1/2, 1).
  const Head head = three_tokens({0, 0, 0}, {1, 2, 4}, {});
  for (const Output& output : {alibi::recurrent(head, kLog2), alibi::parallel(head, kLog2)}) {
    expect_near(output.values, {1, (0.5 + 2) / 1.5, (0.25 + 1 + 4) / 1.75});
    expect_near(output.log_normalizer, {0, std::log(1.5), std::log(1.75)});
  }
}

TEST(ForgettingAttention, ByHand) {
  // f = (·, 1/2, 1/4): weights (1), (1/2, 2), (1/8, 2/4, 1).
  const Head head = three_tokens({0, kLog2, 0}, {1, 2, 4}, {1, 0.5, 0.25});
  for (const Output& output : {forgetting_attention::recurrent(head), forgetting_attention::parallel(head)}) {
    expect_near(output.values, {1, 4.5 / 2.5, 5.125 / 1.625});
    expect_near(output.log_normalizer, {0, std::log(2.5), std::log(1.625)});
  }
}

TEST(ForgettingAttention, ScaleMultipliesTheLogitAndNotTheGate) {
  Head head = three_tokens({0, kLog2, 0}, {1, 2, 4}, {1, 0.5, 0.25});
  head.query *= 4.0;
  head.scale = 0.25;
  expect_near(forgetting_attention::recurrent(head).values, {1, 4.5 / 2.5, 5.125 / 1.625});
}

TEST(ForgettingAttention, GradientsByHand) {
  // Two tokens, keys 0, f_1 = 1/3, loss = o_1: P = (1/4, 3/4), o_1 = 5/2, dP = v,
  // dS = P (v − o) = (1/4 · −3/2, 3/4 · 1/2) = (−3/8, 3/8).
  Head head;
  head.query = vector({5, 2});
  head.key = vector({0, 0});
  head.value = vector({1, 3});
  head.log_forget = vector({0, std::log(1.0 / 3.0)});
  head.scale = 0.5;
  const Gradients gradients = forgetting_attention::gradients(head, Matrix<double>(vector({0, 1})));
  expect_near(gradients.value, {0.25, 0.75});
  expect_near(gradients.query, {0, 0});                             // Σ dS k, and the keys are 0
  expect_near(gradients.key, {-0.375 * 2 * 0.5, 0.375 * 2 * 0.5});  // dS · q · scale
  expect_near(gradients.log_forget, {0, -0.375});                   // dS_10: the one pair that f_1 stands between
}

TEST(ForgettingAttention, AZeroGateHidesWhatCameBeforeAndNotItsOwnToken) {
  const Head head = three_tokens({0, kLog2, 0}, {1, 2, 4}, {1, 0, 1});
  for (const Output& output : {forgetting_attention::recurrent(head), forgetting_attention::parallel(head)}) {
    expect_near(output.values, {1, 2, (2 * 2 + 4) / 3.0});
  }
}

}  // namespace
}  // namespace lethe
