// The lesson's example: the same two tokens under every rule, worked by hand, and what a state returns for its keys.

#include <gtest/gtest.h>

#include <array>

#include "reference/additive_fast_weights.hpp"
#include "reference/delta_fast_weights.hpp"
#include "tests/support/fast_weights.hpp"

namespace lethe {
namespace {

namespace additive = reference::additive_fast_weights;
namespace delta = reference::delta_fast_weights;
using reference::Normalized;

// k_1 = (1, 0) with 4 and k_2 = (1, 1) with 6, each read with its own key. f halves all, a_2 the first row alone, and the
// strengths are 1 / |k|².
Head tokens_of_the_lesson() {
  Head head;
  head.query = head.key = Matrix<double>{{1, 0}, {1, 1}};
  head.value = Vector<double>{{4, 6}};
  head.log_forget = Vector<double>{{0.5, 0.5}}.array().log();
  head.log_key_gate = Matrix<double>{{1, 1}, {0.5, 1}}.array().log();
  head.write_strength = Vector<double>{{1, 0.5}};
  return head;
}

struct RuleByHand {
  const char* variant;
  std::array<double, 2> first, second;  // S_1 and S_2, of one column
  std::array<double, 2> returned;       // S_2ᵀ k_1 and S_2ᵀ k_2
};

Matrix<double> column(const std::array<double, 2>& x) { return Matrix<double>{{x[0]}, {x[1]}}; }

TEST(FastWeights, TheTwoTokensOfTheLessonByHandInEveryForm) {
  const RuleByHand rules[] = {{"linear_attention_unnormalized", {4, 0}, {4 + 6, 6}, {10, 16}},  // additive
                              {"gated_fast_weights", {2, 0}, {1 + 3, 3}, {4, 7}},   // half the past, half the value
                              {"decay_fast_weights", {4, 0}, {2 + 6, 6}, {8, 14}},  // the first row halved
                              {"delta_fast_weights", {4, 0}, {4 + 1, 1}, {5, 6}},   // δ_2 = (6 − 4) / 2
                              {"gated_delta_fast_weights", {4, 0}, {1 + 2.5, 2.5}, {3.5, 6}}};  // δ_2 = (6 − 1) / 2
  const Head both = tokens_of_the_lesson();
  Head one = both;
  for (Matrix<double>* tensor : {&one.query, &one.key, &one.log_key_gate, &one.value}) {
    *tensor = tensor->topRows(1).eval();
  }
  for (Vector<double>* tensor : {&one.log_forget, &one.write_strength}) *tensor = tensor->head(1).eval();
  for (const RuleByHand& rule : rules) {
    const auto named = [&](const reference::Variant& variant) { return variant.name == rule.variant; };
    const auto variant = std::ranges::find_if(reference::variants(), named);
    ASSERT_NE(variant, reference::variants().end()) << rule.variant;
    for (const auto& [name, compute] : forms(*variant)) {
      SCOPED_TRACE(std::string(rule.variant) + ", " + name);
      EXPECT_LE((compute(one).state - column(rule.first)).norm(), 1e-15);
      const Output output = compute(both);
      EXPECT_LE((output.state - column(rule.second)).norm(), 1e-15);
      EXPECT_LE((both.key * output.state - column(rule.returned)).norm(), 1e-15);
      EXPECT_LE(std::abs(output.values(1, 0) - rule.returned[1]), 1e-15);
    }
  }
}

// The table's k_1, for any number of keys.
TEST(AdditiveFastWeights, ReturnTheKeysValueTimesItsSquareAndTheCrosstalk) {
  Head head = random_head({1, 9, 5, 3}, Gate::kZero);
  head.initial_state = {};
  const Matrix<double> returned = head.key * additive::recurrent(head, Normalized::kNo).state;
  for (Eigen::Index j = 0; j < 9; ++j) {
    Matrix<double> expected = head.key.row(j).squaredNorm() * head.value.row(j);
    for (Eigen::Index l = 0; l < 9; ++l) {
      if (l != j) expected += head.key.row(l).dot(head.key.row(j)) * head.value.row(l);
    }
    EXPECT_LE(relative_error(returned.row(j), expected), kExact) << "key " << j;
  }
}

// More keys than dimensions cannot be orthogonal, so the additive rule mixes them for every choice of keys.
TEST(AdditiveFastWeights, HoldKValuesOnOrthonormalKeysAndNotOneMore) {
  Head head = random_head({1, 5, 4, 4}, Gate::kZero);
  head.initial_state = {};
  head.key = Matrix<double>::Identity(5, 4);
  head.key.row(4).setConstant(0.5);  // of length one, with the smallest overlap with all others
  head.value = random_matrix(5, 4, 6);
  const auto error = [&](Eigen::Index tokens) {
    Head first = head;
    first.query = head.query.bottomRows(1);
    first.key = head.key.topRows(tokens).eval();
    first.value = head.value.topRows(tokens).eval();
    return relative_error(first.key * additive::recurrent(first, Normalized::kNo).state, first.value);
  };
  EXPECT_LE(error(4), kExact);
  EXPECT_GT(error(5), kClearlyWrong);
}

// The normalizer of the delta rule sums keys without strengths, so it is no column of the state.
TEST(DeltaFastWeights, HaveANormalizerOutsideTheirState) {
  Head head = random_head({1, 9, 5, 3}, Gate::kInitial);
  head.query = head.query.cwiseAbs();
  head.key = head.key.cwiseAbs().rowwise().normalized();
  head.initial_state = {};
  head.initial_normalizer = {};
  const Matrix<double> normalizer = delta::recurrent(head, Normalized::kYes).normalizer;
  EXPECT_LE(relative_error(normalizer, head.key.colwise().sum().transpose()), kExact);
  Head ones = head;
  ones.value.setOnes();
  const Matrix<double> column_of_ones = delta::recurrent(ones, Normalized::kNo).state.col(0);
  EXPECT_GT(relative_error(column_of_ones, normalizer), kClearlyWrong);
  EXPECT_LE(relative_error(additive::recurrent(ones, Normalized::kNo).state.col(0), normalizer), kExact);
}

}  // namespace
}  // namespace lethe
