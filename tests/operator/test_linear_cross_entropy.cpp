// The output head and its loss, on the CPU: against its definition in float64, and what padding, chunks and labels may change.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "tests/operator/output_head.hpp"

namespace lethe {
namespace {

using at::Tensor;

struct Case {
  at::ScalarType dtype;
  double budget;  // of 16 bits: their rounding of logits and of the logits' gradient
};
constexpr Case kCases[] = {{at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 5e-3}, {at::kHalf, 1e-3}};

TEST(LinearCrossEntropy, AgreesWithItsDefinition) {
  for (const auto [dtype, budget] : kCases) {
    for (const auto& [vocabulary, padded] : {std::pair{97, 104}, {97, 97}, {1, 8}, {50257, 50304}}) {
      SCOPED_TRACE(std::string(toString(dtype)) + ", V = " + std::to_string(vocabulary));
      const OutputHead head = random_output_head(37, 16, vocabulary, padded, dtype);
      const OutputHeadResult found = result_of(head), expected = definition_of(head);
      if (vocabulary == 1) {
        EXPECT_EQ(found.losses.abs().max().item<double>(), 0);
        EXPECT_EQ(found.weight_gradient.abs().max().item<double>(), 0);
        continue;
      }
      EXPECT_LT(relative_error(found.losses, expected.losses), budget);
      EXPECT_LT(relative_error(found.grad_hidden, expected.grad_hidden), budget);
      EXPECT_LT(relative_error(found.weight_gradient, expected.weight_gradient), budget);
      EXPECT_EQ(found.grad_hidden.scalar_type(), dtype);
      EXPECT_TRUE(budget > 1e-4 || found.correct.equal(expected.correct));  // 16 bits make ties
    }
  }
}

TEST(LinearCrossEntropy, GivesPaddingNoGradient) {
  for (const auto [dtype, budget] : kCases) {
    const Tensor gradient = result_of(random_output_head(5, 16, 97, 104, dtype)).weight_gradient;
    EXPECT_EQ(gradient.narrow(0, 97, 7).abs().max().item<double>(), 0) << dtype;
  }
}

TEST(LinearCrossEntropy, AddsToTheWeightsGradient) {
  const OutputHead head = random_output_head(5, 16, 97, 104, at::kDouble);
  Tensor gradient = at::ones({104, 16}, at::kDouble);
  linear_cross_entropy_with_gradients(head.hidden, head.weight, head.labels, 97, head.scale, gradient);
  EXPECT_LT(relative_error(gradient.sub(1), definition_of(head).weight_gradient), 1e-12);
}

TEST(LinearCrossEntropy, IsTheSameInChunksOfAnySize) {
  for (const auto [dtype, allowed] : {Case{at::kDouble, 1e-14}, {at::kFloat, 1e-6}}) {
    const OutputHead head = random_output_head(150, 16, 97, 104, dtype);
    const OutputHeadResult whole = result_of(head);
    for (int64_t rows : {1, 7, 129, 150}) {
      SCOPED_TRACE(std::string(toString(dtype)) + ", rows " + std::to_string(rows));
      const OutputHeadResult parts = result_of(head, rows);
      EXPECT_LT(relative_error(parts.losses, whole.losses), allowed);
      EXPECT_LT(relative_error(parts.grad_hidden, whole.grad_hidden), allowed);
      EXPECT_LT(relative_error(parts.weight_gradient, whole.weight_gradient), allowed);
    }
  }
}

TEST(LinearCrossEntropy, AccumulatesMicroBatchesToTheWholeGradient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const OutputHead head = random_output_head(64, 16, 997, 1008, dtype);
    const Tensor whole = result_of(head).weight_gradient;
    for (int64_t pieces : {2, 4}) {
      Tensor sum = at::zeros_like(whole);
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const auto part = [&](const Tensor& tensor) { return tensor.chunk(pieces)[piece]; };
        linear_cross_entropy_with_gradients(part(head.hidden), head.weight, part(head.labels), head.vocabulary,
                                            head.scale, sum);
      }
      EXPECT_LT(relative_error(sum, whole), 1e-5) << dtype << ", " << pieces;
    }
  }
}

TEST(LinearCrossEntropy, EvaluatesToTheLossesOfTraining) {
  for (const auto [dtype, budget] : kCases) {
    const OutputHead head = random_output_head(64, 16, 97, 104, dtype);
    const auto evaluated = linear_cross_entropy(head.hidden, head.weight, head.labels, head.vocabulary);
    const OutputHeadResult trained = result_of(head);
    EXPECT_TRUE(evaluated.losses.equal(trained.losses) && evaluated.correct.equal(trained.correct)) << dtype;
    EXPECT_FALSE(evaluated.grad_hidden.defined());
  }
}

TEST(LinearCrossEntropy, GivesEqualBitsToEqualCalls) {
  const OutputHead head = random_output_head(64, 16, 97, 104, at::kFloat);
  const OutputHeadResult first = result_of(head), second = result_of(head);
  EXPECT_TRUE(first.losses.equal(second.losses) && first.grad_hidden.equal(second.grad_hidden) &&
              first.weight_gradient.equal(second.weight_gradient));
}

// The rows of hidden pick a column of the weight each: the logits are exact.
TEST(LinearCrossEntropy, CallsTheFirstLargestLogitCorrect) {
  const Tensor logits = at::tensor({3., 1., 3., 2.}, at::kDouble).repeat({4, 1});
  const Tensor labels = at::tensor({0, 1, 2, 3}, at::kLong);
  const auto found = linear_cross_entropy(at::eye(4, at::kDouble), logits.t().contiguous(), labels, 4);
  EXPECT_TRUE(found.correct.equal(labels.eq(0)));
}

TEST(LinearCrossEntropy, SurvivesLogitsBeyondTheRangeOfExp) {
  for (const double size : {1e4, -1e4}) {
    const Tensor weight = at::tensor({size, size - 1, size / 2, 0.}, at::kDouble);
    const auto found =
        linear_cross_entropy(at::ones({2, 1}, at::kDouble), weight.unsqueeze(1), at::tensor({0, 3}, at::kLong), 3);
    const double first = size > 0 ? std::log1p(std::exp(-1)) : -size / 2;
    EXPECT_NEAR(found.losses[0].item<double>(), first, 1e-6 * std::abs(size));
    EXPECT_TRUE(std::isnan(found.losses[1].item<double>())) << "label 3 is padding";
  }
}

TEST(LinearCrossEntropy, HasNoLossBesideALogitOfInfinity) {
  const Tensor weight = at::tensor({INFINITY, 1.f, 2.f}, at::kFloat).unsqueeze(1);
  const Tensor hidden = at::tensor({1.f, -1.f}, at::kFloat).unsqueeze(1);  // logits of +∞ and of −∞
  const auto found = linear_cross_entropy(hidden, weight, at::tensor({1, 1}, at::kLong), 3);
  EXPECT_TRUE(std::isnan(found.losses[0].item<float>()));
  EXPECT_NEAR(found.losses[1].item<float>(), std::log1p(std::exp(-1)), 1e-6);
}

TEST(LinearCrossEntropy, SpoilsOnlyTheRowsOfUnknownLabels) {
  for (const int64_t unknown : {-1, 97, 103, 1 << 20}) {
    OutputHead head = random_output_head(6, 16, 97, 104, at::kDouble);
    const OutputHeadResult good = result_of(head);
    head.labels[2] = unknown;
    const OutputHeadResult found = result_of(head);
    EXPECT_TRUE(found.losses.isnan().equal(at::arange(6).eq(2))) << unknown;
    EXPECT_FALSE(found.correct[2].item<bool>());
    EXPECT_TRUE(found.grad_hidden[2].isnan().all().item<bool>());
    EXPECT_TRUE(found.grad_hidden.slice(0, 3).equal(good.grad_hidden.slice(0, 3)));
  }
}

TEST(LinearCrossEntropy, NamesWhatIsWrong) {
  const auto message = [](const std::function<void(OutputHead&)>& spoil) -> std::string {
    OutputHead head = random_output_head(6, 16, 97, 104, at::kFloat);
    spoil(head);
    try {
      linear_cross_entropy(head.hidden, head.weight, head.labels, head.vocabulary);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  };
  EXPECT_EQ(message([](OutputHead&) {}), "no error");
  EXPECT_EQ(message([](OutputHead& h) { h.labels = h.labels.to_sparse(); }),
            "labels: expected a strided layout, found Sparse");
  EXPECT_EQ(message([](OutputHead& h) { h.hidden = h.hidden[0]; }), "hidden: expected 2 dimensions [N,d], found 1");
  EXPECT_EQ(message([](OutputHead& h) { h.weight = h.weight.narrow(1, 0, 8); }),
            "weight: expected shape [104, 16], found [104, 8]");
  EXPECT_EQ(message([](OutputHead& h) { h.weight = h.weight.to(at::kHalf); }),
            "weight: expected dtype Float, found Half");
  EXPECT_EQ(message([](OutputHead& h) { h.labels = h.labels.to(at::kInt); }), "labels: expected dtype Long, found Int");
  EXPECT_EQ(message([](OutputHead& h) { h.vocabulary = 105; }),
            "vocabulary: expected 1 … 104, the rows of weight, found 105");
  Tensor half = at::zeros({104, 16}, at::kBFloat16);
  const OutputHead head = random_output_head(6, 16, 97, 104, at::kBFloat16);
  EXPECT_THROW(linear_cross_entropy_with_gradients(head.hidden, head.weight, head.labels, 97, 1, half), c10::Error);
}

}  // namespace
}  // namespace lethe
