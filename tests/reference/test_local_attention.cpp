// Local attention: by hand, at the limits of its window, and negative controls.

#include "reference/local_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/softmax_attention.hpp"
#include "tests/support/heads.hpp"
#include "tests/support/matrices.hpp"

namespace lethe {
namespace {

namespace local_attention = reference::local_attention;
namespace softmax_attention = reference::softmax_attention;

// Each form with the given window.
std::vector<NamedForm> local_forms(Eigen::Index window) {
  reference::Variant variant;
  variant.recurrent = [=](const Head& head) { return local_attention::recurrent(head, window); };
  variant.parallel = [=](const Head& head) { return local_attention::parallel(head, window); };
  variant.chunked = [=](const Head& head, Eigen::Index length) {
    return local_attention::chunked(head, window, length);
  };
  return forms(variant);
}

TEST(LocalAttention, ByHand) {
  // Keys log(1, 2, 1, 4) weigh (1), (1, 2), (·, 2, 1), (·, ·, 1, 4): a window of two counts the query's own token.
  Head head;
  head.query = Matrix<double>::Ones(4, 1);
  head.key = Matrix<double>{{0.0}, {std::log(2.0)}, {0.0}, {std::log(4.0)}};
  head.value = Matrix<double>{{1.0}, {4.0}, {3.0}, {8.0}};
  for (const auto& [name, compute] : local_forms(2)) {
    const Output output = compute(head);
    const Matrix<double> expected{{1.0}, {(1 + 2 * 4) / 3.0}, {(2 * 4 + 3) / 3.0}, {(3 + 4 * 8) / 5.0}};
    EXPECT_LT(relative_error(output.values, expected), 1e-15) << name;
    EXPECT_NEAR(output.log_normalizer[3], std::log(5.0), 1e-15) << name;
  }
}

TEST(LocalAttention, FormsAgreeForEveryWindow) {
  for (const Lengths& lengths : {Lengths{1, 1}, Lengths{65, 65}, Lengths{17, 64}, Lengths{1, 17}}) {
    const Head head = random_head(lengths, Gate::kZero);
    for (Eigen::Index window : {1, 2, 16, 17, 64, 65, 1000}) {
      const Output expected = local_attention::recurrent(head, window);
      for (const auto& [name, compute] : local_forms(window)) {
        const Output output = compute(head);
        EXPECT_LT(relative_error(output.values, expected.values), kExact) << name << ", window " << window;
        EXPECT_TRUE(compare(flat(output.log_normalizer), flat(expected.log_normalizer), kExact, 1e-3).passed()) << name;
      }
    }
  }
}

TEST(LocalAttention, IsSoftmaxAttentionWhereTheWindowHoldsEveryKey) {
  const Head head = random_head({40, 49}, Gate::kZero);
  const Matrix<double> values_gradient = random_values_gradient(head);
  for (Eigen::Index window : {49, 1000}) {
    EXPECT_EQ(local_attention::recurrent(head, window).values, softmax_attention::recurrent(head).values);
    EXPECT_EQ(local_attention::parallel(head, window).values, softmax_attention::parallel(head).values);
    EXPECT_EQ(local_attention::gradients(head, window, values_gradient).key,
              softmax_attention::gradients(head, values_gradient).key);
  }
  EXPECT_GT(relative_error(local_attention::parallel(head, 48).values, softmax_attention::parallel(head).values), 1e-6);
}

TEST(LocalAttention, WithAWindowOfOneReturnsTheTokensOwnValue) {
  const Head head = random_head({20, 20}, Gate::kZero);
  for (const auto& [name, compute] : local_forms(1)) EXPECT_EQ(compute(head).values, head.value) << name;
}

TEST(LocalAttention, AQueryReachesTheOldestTokenOfItsWindowAndNoOlderOne) {
  constexpr Eigen::Index kWindow = 7, kRow = 30;
  const Head head = random_head({40, 40}, Gate::kZero);
  Matrix<double> values_gradient = Matrix<double>::Zero(40, 3);
  values_gradient.row(kRow).setOnes();
  const Gradients gradients = local_attention::gradients(head, kWindow, values_gradient);
  for (Eigen::Index j = 0; j < 40; ++j) {
    const bool seen = j <= kRow && kRow - j < kWindow;
    EXPECT_EQ(gradients.value.row(j).norm() > 0, seen) << j;
    EXPECT_EQ(gradients.key.row(j).norm() > 0, seen) << j;
  }
}

TEST(LocalAttention, AWindowOffByOneExceedsThreeTimesTheWidestBudget) {
  for (const Head& head : random_heads({257, 257}, Gate::kZero)) {
    const Matrix<double> right = local_attention::parallel(head, 7).values;
    for (Eigen::Index window : {6, 8}) {
      const Agreement agreement =
          compare(flat(local_attention::parallel(head, window).values), flat(right), budget(Dtype::kBFloat16));
      EXPECT_GT(agreement.share(), 3.0) << window << ": " << agreement.describe();
    }
  }
}

TEST(LocalAttention, RefusesAnEmptyWindow) {
  const Head head = random_head({4, 4}, Gate::kZero);
  for (Eigen::Index window : {0, -1}) {
    for (const auto& [name, compute] : local_forms(window)) EXPECT_THROW(compute(head), std::invalid_argument) << name;
    EXPECT_THROW(local_attention::gradients(head, window, head.value), std::invalid_argument);
  }
}

}  // namespace
}  // namespace lethe
