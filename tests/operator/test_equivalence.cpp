// The operator equals the reference: values, log_normalizer and every gradient, for every dtype and gate.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optimized/torch/forgetting_attention.hpp"
#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/operator/operator_and_reference.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

constexpr Dtype kEveryDtype[] = {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16, Dtype::kFloat16};

Shape shape_of(int64_t query_length, int64_t key_length, int64_t batch, int64_t heads, int64_t query_heads,
               int64_t key_dim, int64_t value_dim) {
  return {.batch = batch,
          .query_length = query_length,
          .key_length = key_length,
          .heads = heads,
          .query_heads = query_heads,
          .key_dim = key_dim,
          .value_dim = value_dim};
}

TEST(ForgettingAttentionOperator, EqualsTheReferenceForEveryDtypeGateAndShape) {
  const Shape shapes[] = {
      shape_of(1, 1, 2, 3, 3, 8, 4), shape_of(2, 2, 1, 1, 2, 5, 7), shape_of(17, 17, 2, 3, 3, 16, 8),
      shape_of(63, 63, 1, 1, 1, 64, 64), shape_of(65, 65, 1, 2, 4, 8, 24), shape_of(129, 129, 1, 1, 1, 64, 32),
      shape_of(257, 257, 1, 1, 2, 16, 16), shape_of(5, 300, 1, 3, 3, 32, 8), shape_of(140, 620, 1, 1, 3, 8, 8),
      // the tiles' own sizes, and one beside
      shape_of(64, 64, 1, 1, 1, 8, 8), shape_of(127, 127, 1, 1, 1, 8, 8), shape_of(128, 128, 1, 1, 1, 8, 8),
      shape_of(256, 256, 1, 1, 1, 8, 8), shape_of(512, 512, 1, 1, 1, 8, 8)};
  uint64_t seed = 1;
  for (const Dtype dtype : kEveryDtype) {
    for (const Gate gate : kEveryGate) {
      for (const Shape& shape : shapes) {
        SCOPED_TRACE(dtype_name(dtype) + ", " + describe({shape.query_length, shape.key_length}, gate));
        expect_equals_reference(random_problem(shape, dtype, gate, ++seed));
      }
    }
  }
}

TEST(ForgettingAttentionOperator, EqualsTheReferenceAcrossManyBlocks) {
  for (const Gate gate : kEveryGate) {
    SCOPED_TRACE(gate_name(gate));
    expect_equals_reference(random_problem(shape_of(1100, 1300, 1, 1, 1, 16, 16), Dtype::kFloat32, gate, 5));
  }
}

// Two neighbours after a gate of −9999, both far from the sum's beginning: their difference must not have that gate's rounding.
TEST(ForgettingAttentionOperator, EqualsTheReferenceAfterSingleStrongGates) {
  for (const double gate : {-10.0, -40.0, -100.0, -1000.0, -9999.0}) {
    SCOPED_TRACE(gate);
    Problem problem = random_problem(shape_of(300, 300, 1, 1, 1, 16, 16), Dtype::kFloat32, Gate::kOpen, 12);
    for (const int64_t position : {37, 77, 78, 150, 288}) problem.log_forget[position] = gate - 0.3;
    expect_equals_reference(problem);
  }
}

// Before the n-th gate of −2^17 the first component adds n·2^17 to the logits: it cancels the gates, and every weight counts. Queries, keys and gates
// are multiples of 1/8, so that float32 holds every logit exactly. (It does not hold the normaliser, as large as the logits: gradients only in
// float64.)
TEST(ForgettingAttentionOperator, EqualsTheReferenceWhereLogitsMakeUpForHugeFiniteGates) {
  constexpr double kHuge = 131072.0;
  for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
    for (const int64_t queries : {300, 40}) {
      SCOPED_TRACE(dtype_name(dtype) + ", queries " + std::to_string(queries));
      Problem problem = random_problem(shape_of(queries, 300, 1, 1, 1, 4, 16), dtype, Gate::kOpen, 13);
      problem.scale = 1.0;
      const auto in_eighths = [](double number) { return std::round(8.0 * number) / 8.0; };
      for (double& q : problem.query) q = std::round(q);
      for (double& k : problem.key) k = in_eighths(k);
      for (double& log_f : problem.log_forget) log_f = in_eighths(100.0 * log_f);
      for (int64_t i = 0; i < queries; ++i) problem.query[4 * i] = 1.0;
      int64_t left = 0;
      for (int64_t t = 299; t >= 0; --t) {
        problem.key[4 * t] = static_cast<double>(left) * kHuge;
        if (t != 20 && t != 63 && t != 64 && t != 200 && t != 280) continue;
        problem.log_forget[t] = -kHuge;
        ++left;
      }
      const Head head = head_of(problem, 0, 0);
      const at::Tensor values_gradient = random_values_gradient(problem);
      const OperatorResult result = run_operator(problem, values_gradient);
      const Agreement values = compare(head_of(result.values, 0, 0),
                                       flat(reference::forgetting_attention::parallel(head).values), budget(dtype));
      EXPECT_TRUE(values.passed()) << values.describe();
      if (dtype != Dtype::kFloat64) continue;
      const std::vector<double> flat_gradient = head_of(values_gradient, 0, 0);
      const Gradients expected = reference::forgetting_attention::gradients(
          head, Matrix<double>(Eigen::Map<const Matrix<double>>(flat_gradient.data(), queries, 16)));
      const Agreement gates = compare(head_of(result.log_forget, 0, 0), flat(expected.log_forget), 1e-10);
      EXPECT_TRUE(gates.passed()) << gates.describe();
    }
  }
}

// Gates without logits to cancel them are as good as cuts, and those next to them keep their digits.
TEST(ForgettingAttentionOperator, KeepsTheDigitsOfGatesNextToAGateOfAnySize) {
  for (const double huge : {-1e5, -1e6, -1e30, -3.4e38}) {
    SCOPED_TRACE(huge);
    Problem problem = random_problem(shape_of(300, 300, 1, 1, 1, 16, 16), Dtype::kFloat32, Gate::kInitial, 15);
    Problem cut = problem;
    for (int64_t t = 0; t < 300; ++t) {
      if (t != 37 && t != 150 && t / 40 != 5) continue;  // alone, and forty in a row
      problem.log_forget[t] = round_to(Dtype::kFloat32, huge);
      cut.log_forget[t] = -INFINITY;
    }
    const at::Tensor values_gradient = random_values_gradient(problem);
    const OperatorResult actual = run_operator(problem, values_gradient), expected = run_operator(cut, values_gradient);
    EXPECT_GT(actual.visited_pairs.item().toLong(), expected.visited_pairs.item().toLong());
    EXPECT_TRUE(at::allclose(actual.values, expected.values, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(actual.log_normalizer, expected.log_normalizer, 1e-5, 1e-5));
    EXPECT_TRUE(at::allclose(actual.query, expected.query, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(actual.key, expected.key, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(actual.value, expected.value, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(actual.log_forget, expected.log_forget, 1e-4, 1e-5));
  }
}

// One cut alone: with more, another in the same tile may hide a missed one.
TEST(ForgettingAttentionOperator, EqualsTheReferenceWithOneCutAnywhereInATile) {
  for (const int64_t queries : {640, 540})
    for (const int64_t cut : {1, 31, 32, 63, 64, 65, 127, 128, 129, 192, 255, 256, 384, 512, 639}) {
      SCOPED_TRACE(cut);
      Problem problem = random_problem(shape_of(queries, 640, 1, 1, 1, 16, 16), Dtype::kFloat32, Gate::kOpen, 14);
      problem.log_forget[cut] = -INFINITY;
      expect_equals_reference(problem);
    }
}

TEST(ForgettingAttentionOperator, EqualsTheReferenceWhenItPrunesWhatIsBelowRounding) {
  const Problem problem = random_problem(shape_of(700, 900, 1, 1, 1, 8, 8), Dtype::kFloat64, Gate::kStrong, 6);
  const double log_tolerance = -36.0;  // ε = 2e-16
  const ProblemTensors inputs = tensors_of(problem);
  const auto statistics = forgetting_attention_with_statistics(inputs.query, inputs.key, inputs.value,
                                                               inputs.log_forget, problem.scale, log_tolerance);
  ASSERT_LT(std::get<2>(statistics).item().toLong(), 700 * 200 + 700 * 701 / 2) << "nothing was pruned";
  expect_equals_reference(problem, log_tolerance);
}

TEST(ForgettingAttentionOperator, KeepsTheBiasExactOverAQuarterOfAMillionTokens) {
  constexpr int64_t kLength = 262144, kQueries = 257;
  Problem problem = random_problem(shape_of(kQueries, kLength, 1, 1, 1, 4, 4), Dtype::kFloat32, Gate::kZero, 4);
  const Problem uniform = random_problem(shape_of(1, kLength, 1, 1, 1, 1, 1), Dtype::kFloat32, Gate::kOpen, 5);
  for (int64_t t = 0; t < kLength; ++t) {
    problem.log_forget[t] = round_to(Dtype::kFloat32, 1e4 * uniform.log_forget[t]);  // −U(0, 2): mean −1
  }
  const ProblemTensors inputs = tensors_of(problem);
  const auto [values, log_normalizer, visited] =
      forgetting_attention_with_statistics(inputs.query, inputs.key, inputs.value, inputs.log_forget, problem.scale);
  const Head head = head_of(problem, 0, 0);
  const std::vector<double> flat_values = head_of(values, 0, 0), normalizers = head_of(log_normalizer, 0, 0);
  for (const int64_t row : {int64_t{0}, int64_t{31}, int64_t{127}, int64_t{128}, kQueries - 1}) {
    SCOPED_TRACE("row " + std::to_string(row));
    const Output expected = reference::forgetting_attention::one_query(head, row);
    EXPECT_NEAR(normalizers[row], expected.log_normalizer[0], 1e-5);
    const Agreement agreement = compare({flat_values.data() + 4 * row, 4}, flat(expected.values), 1e-5);
    EXPECT_TRUE(agreement.passed()) << agreement.describe();
  }
}

// Wrong formulas, as wrong calls of the right operator: each must miss the reference by more than three budgets.
TEST(ForgettingAttentionOperator, MissesTheReferenceWhereTheFormulaIsWrong) {
  const Problem right = random_problem(shape_of(70, 70, 1, 1, 1, 16, 16), Dtype::kBFloat16, Gate::kInitial, 8);
  const Output expected = reference::forgetting_attention::parallel(head_of(right, 0, 0));
  const auto share_of_budget = [&](const Problem& wrong, int64_t rows) {
    const OperatorResult result = run_operator(wrong, random_values_gradient(wrong));
    const Matrix<double> last_rows = expected.values.bottomRows(rows);
    return compare(head_of(result.values, 0, 0), flat(last_rows), budget(right.dtype)).share();
  };
  Problem ignored_gate = right, late_gate = right, wrong_scale = right, early_mask = right;
  std::fill(ignored_gate.log_forget.begin(), ignored_gate.log_forget.end(), 0.0);
  std::rotate(late_gate.log_forget.begin(), late_gate.log_forget.begin() + 1, late_gate.log_forget.end());
  wrong_scale.scale *= 1.05;
  early_mask.shape.query_length = early_mask.shape.key_length = 69;  // query 1 is at position 0, and so on
  early_mask.query.erase(early_mask.query.begin(), early_mask.query.begin() + 16);
  early_mask.key.resize(69 * 16);
  early_mask.value.resize(69 * 16);
  early_mask.log_forget.resize(69);
  EXPECT_LT(share_of_budget(right, 70), 1.0);
  EXPECT_GT(share_of_budget(ignored_gate, 70), 3.0);
  EXPECT_GT(share_of_budget(late_gate, 70), 3.0);
  EXPECT_GT(share_of_budget(wrong_scale, 70), 3.0);
  EXPECT_GT(share_of_budget(early_mask, 69), 3.0);
}

TEST(ForgettingAttentionOperator, LetsNothingThroughACut) {
  Problem problem = random_problem(shape_of(200, 200, 1, 1, 1, 8, 8), Dtype::kFloat32, Gate::kOpen, 9);
  constexpr int64_t kCut = 140;
  problem.log_forget[kCut] = -INFINITY;
  at::Tensor values_gradient = random_values_gradient(problem);
  values_gradient.narrow(1, 0, kCut).zero_();  // the loss of the rows after the cut
  const OperatorResult result = run_operator(problem, values_gradient);
  EXPECT_EQ(result.key.narrow(1, 0, kCut).abs().sum().item().toDouble(), 0.0);
  EXPECT_EQ(result.value.narrow(1, 0, kCut).abs().sum().item().toDouble(), 0.0);
  EXPECT_EQ(result.log_forget.narrow(1, 0, kCut + 1).abs().sum().item().toDouble(), 0.0);
  EXPECT_GT(result.log_forget.narrow(1, kCut + 1, 20).abs().sum().item().toDouble(), 0.0);
}

TEST(ForgettingAttentionOperator, HidesNoNaNOfItsInputs) {
  const Problem problem = random_problem(shape_of(140, 140, 1, 1, 1, 8, 8), Dtype::kFloat32, Gate::kInitial, 10);
  ProblemTensors inputs = tensors_of(problem);
  inputs.query.select(1, 135).fill_(NAN);
  const at::Tensor values = forgetting_attention(inputs.query, inputs.key, inputs.value, inputs.log_forget);
  EXPECT_TRUE(std::isnan(values.select(1, 135).sum().item().toDouble()));
  EXPECT_TRUE(std::isfinite(values.narrow(1, 0, 135).sum().item().toDouble()));
}

}  // namespace
}  // namespace lethe
