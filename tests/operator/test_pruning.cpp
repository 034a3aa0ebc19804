// The claims of Adaptive Computation Pruning: the boundary is the definition's, the discarded weight is below the tolerance for any inputs, the
// reported counts are the computed ones, and it does prune.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optimized/torch/forgetting_attention.hpp"
#include "reference/computation_pruning.hpp"
#include "tests/operator/problem_tensors.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

constexpr reference::Blocks kBlocks{.query = 128, .key = 64};  // the CPU implementation's

std::vector<int64_t> boundary_of(const at::Tensor& boundary, int64_t batch, int64_t head) {
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < boundary.size(2); ++i) blocks.push_back(boundary[batch][head][i].item().toLong());
  return blocks;
}

Problem problem_of(int64_t query_length, int64_t key_length, Gate gate, uint64_t seed) {
  const Shape shape{.batch = 2,
                    .query_length = query_length,
                    .key_length = key_length,
                    .heads = 1,
                    .query_heads = 2,
                    .key_dim = 8,
                    .value_dim = 8};
  return random_problem(shape, Dtype::kFloat32, gate, seed);
}

// Keys far away have logits of +U and keys nearby of −U: the worst that a bound of U allows.
Problem adversarial_problem() {
  Problem problem = problem_of(1000, 1000, Gate::kZero, 1);
  const Shape& shape = problem.shape;
  for (size_t i = 0; i < problem.query.size(); ++i) problem.query[i] = i % shape.key_dim == 0 ? 8.0 : 0.0;
  for (size_t i = 0; i < problem.key.size(); ++i) {
    const int64_t position = static_cast<int64_t>(i) / shape.key_dim % shape.key_length;
    problem.key[i] = i % shape.key_dim == 0 ? (position < 600 ? 2.0 : -2.0) : 0.0;
  }
  for (double& log_f : problem.log_forget) log_f = -0.0625;
  return problem;
}

// The boundary by weight of a query block has the length of its first query's sequence, between cuts.
std::vector<int64_t> expected_by_weight(const Vector<double>& log_forget, int64_t query_length, double bound,
                                        double log_tolerance) {
  std::vector<int64_t> expected;
  const int64_t keys = log_forget.size();
  for (int64_t row = 0; row * kBlocks.query < query_length; ++row) {
    const int64_t first = keys - query_length + row * kBlocks.query;
    int64_t begin = first, end = first + 1;
    while (begin > 0 && !std::isinf(log_forget[begin])) --begin;
    while (end < keys && !std::isinf(log_forget[end])) ++end;
    const double threshold = reference::computation_pruning::threshold(bound, end - begin, log_tolerance);
    expected.push_back(
        reference::computation_pruning::boundary_by_search(log_forget, query_length, kBlocks, threshold)[row]);
  }
  return expected;
}

TEST(Pruning, VisitsFromTheBoundaryThatTheDefinitionGives) {
  for (const Gate gate : kEveryGate) {
    for (const Lengths lengths : {Lengths{1000, 1000}, Lengths{70, 900}, Lengths{257, 300}}) {
      SCOPED_TRACE(describe(lengths, gate));
      const Problem problem = problem_of(lengths.query, lengths.key, gate, 3);
      const at::Tensor bound = at::full({2}, 6.0, at::kDouble);
      for (const bool by_mass : {false, true}) {
        SCOPED_TRACE(by_mass ? "by mass" : "by weight");
        const auto [values, normalizer, visited, boundary] =
            forward_with_boundary(tensors_of(problem), problem.scale, -10.0, bound, by_mass);
        for (int64_t batch = 0; batch < 2; ++batch) {
          for (int64_t head = 0; head < 2; ++head) {
            const Vector<double> log_forget = head_of(problem, batch, head).log_forget;
            const auto weights = expected_by_weight(log_forget, lengths.query, 6.0, -10.0);
            const auto expected = by_mass ? reference::computation_pruning::boundary_by_mass(
                                                log_forget, lengths.query, kBlocks,
                                                reference::computation_pruning::mass_threshold(6.0, -10.0))
                                          : weights;
            const auto actual = boundary_of(boundary, batch, head);
            EXPECT_EQ(visited[batch][head].item().toLong(),
                      reference::computation_pruning::visited_pairs(lengths.query, lengths.key, kBlocks, actual));
            if (lengths.query == lengths.key) {
              EXPECT_EQ(actual, expected);
              continue;
            }
            // Of the gates before the first visited block none is read: what they leave undecided is visited.
            const auto whole = reference::computation_pruning::boundary_by_walk(
                log_forget, lengths.query, kBlocks, reference::computation_pruning::threshold(6.0, lengths.key, -10.0));
            for (size_t row = 0; row < actual.size(); ++row) {
              EXPECT_LE(actual[row], expected[row]);
              EXPECT_GE(actual[row], whole[row]);
            }
          }
        }
      }
    }
  }
}

// With decaying gates the keys' mass is far below their number: at 16 nats per thousand tokens e⁻⁷ of it.
TEST(Pruning, ByMassVisitsFewerBlocksOfTheSameTolerance) {
  Problem problem = problem_of(4096, 4096, Gate::kZero, 24);
  for (double& log_f : problem.log_forget) log_f = -0.0625;
  const at::Tensor bound = at::full({2}, 3.0, at::kDouble);
  std::vector<int64_t> pairs;
  for (const bool by_mass : {false, true}) {
    const auto [values, normalizer, visited, boundary] =
        forward_with_boundary(tensors_of(problem), problem.scale, -10.0, bound, by_mass);
    pairs.push_back(visited[0][0].item().toLong());
  }
  EXPECT_LT(pairs[1], 0.9 * pairs[0]);
}

TEST(Pruning, DiscardsLessThanTheToleranceWithTheBoundFromNorms) {
  for (const double log_tolerance : {-10.0, -1.0, -0.1}) {
    for (const Problem& problem :
         {problem_of(1000, 1000, Gate::kInitial, 4), problem_of(300, 1000, Gate::kSpiky, 5), adversarial_problem()}) {
      const auto unpruned = forward_with_boundary(tensors_of(problem), problem.scale, std::nullopt, std::nullopt);
      for (const bool by_mass : {false, true}) {
        const auto [values, normalizer, visited, boundary] =
            forward_with_boundary(tensors_of(problem), problem.scale, log_tolerance, std::nullopt, by_mass);
        EXPECT_LT(visited.sum().item().toLong(), std::get<2>(unpruned).sum().item().toLong()) << "nothing was pruned";
        for (int64_t batch = 0; batch < 2; ++batch) {
          for (int64_t head = 0; head < 2; ++head) {
            const Head inputs = head_of(problem, batch, head);
            const Vector<double> lost =
                reference::computation_pruning::discarded_weight(inputs, kBlocks, boundary_of(boundary, batch, head));
            EXPECT_LE(lost.maxCoeff(), std::exp(log_tolerance));
          }
        }
      }
    }
  }
}

// The guarantee depends on the bound: with one that is too small, the same inputs lose more than the tolerance.
TEST(Pruning, DiscardsMoreThanTheToleranceWhereTheBoundIsNone) {
  const Problem problem = adversarial_problem();
  const at::Tensor no_bound = at::zeros({2}, at::kDouble);
  const auto [values, normalizer, visited, boundary] =
      forward_with_boundary(tensors_of(problem), problem.scale, -1.0, no_bound);
  const Vector<double> lost =
      reference::computation_pruning::discarded_weight(head_of(problem, 0, 0), kBlocks, boundary_of(boundary, 0, 0));
  EXPECT_GT(lost.maxCoeff(), std::exp(-1.0));
}

TEST(Pruning, WithAToleranceOfMinusInfinityIsBitEqualToNone) {
  for (const Gate gate : {Gate::kStrong, Gate::kCutting}) {
    const Problem problem = problem_of(500, 600, gate, 6);
    const double none = -std::numeric_limits<double>::infinity();
    const auto pruned = forward_with_boundary(tensors_of(problem), problem.scale, none, std::nullopt);
    const auto unpruned = forward_with_boundary(tensors_of(problem), problem.scale, std::nullopt, std::nullopt);
    EXPECT_TRUE(at::equal(std::get<0>(pruned), std::get<0>(unpruned)));
    EXPECT_TRUE(at::equal(std::get<1>(pruned), std::get<1>(unpruned)));
    EXPECT_TRUE(at::equal(std::get<2>(pruned), std::get<2>(unpruned)));
  }
}

TEST(Pruning, SkipsTheBlocksBeforeACutAtAnyTolerance) {
  const double none = -std::numeric_limits<double>::infinity();
  for (const Lengths lengths : {Lengths{1000, 1000}, Lengths{1, 900}, Lengths{257, 300}}) {
    const Problem problem = problem_of(lengths.query, lengths.key, Gate::kCutting, 23);
    for (const std::optional<double> tolerance : {std::optional<double>(), std::optional(none), std::optional(-1e30)}) {
      SCOPED_TRACE(describe(lengths, Gate::kCutting) + ", tolerance " + std::to_string(tolerance.value_or(0.0)));
      const auto [values, normalizer, visited, boundary] =
          forward_with_boundary(tensors_of(problem), problem.scale, tolerance, std::nullopt);
      for (int64_t batch = 0; batch < 2; ++batch) {
        for (int64_t head = 0; head < 2; ++head) {
          const auto expected = reference::computation_pruning::boundary_by_walk(
              head_of(problem, batch, head).log_forget, lengths.query, kBlocks, std::numeric_limits<double>::lowest());
          EXPECT_GT(expected.back(), 0) << "no block is before a cut";
          EXPECT_EQ(boundary_of(boundary, batch, head), expected);
          EXPECT_EQ(visited[batch][head].item().toLong(),
                    reference::computation_pruning::visited_pairs(lengths.query, lengths.key, kBlocks, expected));
        }
      }
    }
  }
}

TEST(Pruning, CountsEveryCausalPairWhereItIsOff) {
  const Problem problem = problem_of(70, 200, Gate::kStrong, 7);
  const auto result = forward_with_boundary(tensors_of(problem), problem.scale, std::nullopt, std::nullopt);
  EXPECT_TRUE(at::equal(std::get<2>(result), at::full({2, 2}, 70 * 130 + 70 * 71 / 2, at::kLong)));
}

TEST(Pruning, TakesABoundForEachHeadOrForEachBatchAndHead) {
  const Problem problem = problem_of(600, 600, Gate::kInitial, 8);
  const ProblemTensors inputs = tensors_of(problem);
  const auto per_head = forward_with_boundary(inputs, problem.scale, -10.0, at::tensor({3.0, 300.0}, at::kDouble));
  const auto per_batch = forward_with_boundary(inputs, problem.scale, -10.0,
                                               at::tensor({3.0, 300.0, 3.0, 300.0}, at::kDouble).view({2, 2}));
  EXPECT_TRUE(at::equal(std::get<3>(per_head), std::get<3>(per_batch)));
  const at::Tensor visited = std::get<2>(per_head);
  EXPECT_LT(visited[0][0].item().toLong(), visited[0][1].item().toLong()) << "a larger bound must prune less";
}

// Pruned gradients belong to the pruned values: both must leave out the same blocks.
TEST(Pruning, HasGradientsThatEqualThoseWithoutItUpToTheTolerance) {
  const Problem problem = problem_of(900, 900, Gate::kInitial, 9);
  std::vector<at::Tensor> gradients[2];
  for (const bool pruned : {false, true}) {
    ProblemTensors inputs = tensors_of(problem);
    for (at::Tensor* input : {&inputs.query, &inputs.key, &inputs.value, &inputs.log_forget}) input->requires_grad_();
    forgetting_attention(inputs.query, inputs.key, inputs.value, inputs.log_forget, problem.scale,
                         pruned ? std::optional<double>(-16.0) : std::nullopt)
        .sum()
        .backward();
    gradients[pruned] = {inputs.query.grad(), inputs.key.grad(), inputs.value.grad(), inputs.log_forget.grad()};
  }
  for (size_t i = 0; i < 4; ++i) {
    const double difference = gradients[1][i].sub(gradients[0][i]).norm().item().toDouble();
    EXPECT_LT(difference, 1e-5 * gradients[0][i].norm().item().toDouble()) << "input " << i;
  }
}

// visited_pairs and the boundary are what should be computed; this test sees the computed pairs: a pair that is touched takes part in a product.
TEST(Pruning, ReadsNothingBeforeTheBoundary) {
  const Problem problem = problem_of(300, 1500, Gate::kStrong, 21);
  const at::Tensor bound = at::full({2}, 6.0, at::kDouble);
  for (const bool pruning : {true, false}) {
    ProblemTensors inputs = tensors_of(problem);
    const at::Tensor boundary = std::get<3>(forward_with_boundary(inputs, problem.scale, -10.0, bound));
    const int64_t unread =
        boundary.min().item().toLong() * kBlocks.key;  // keys before the first block that any query visits
    ASSERT_GT(unread, 500);
    for (at::Tensor* rows : {&inputs.key, &inputs.value}) rows->narrow(1, 0, unread).fill_(NAN);
    for (at::Tensor* input : {&inputs.query, &inputs.key, &inputs.value, &inputs.log_forget}) input->requires_grad_();
    const auto tolerance = pruning ? std::optional<double>(-10.0) : std::nullopt;
    const at::Tensor values = forgetting_attention(inputs.query, inputs.key, inputs.value, inputs.log_forget,
                                                   problem.scale, tolerance, bound);
    values.sum().backward();
    EXPECT_EQ(values.isfinite().all().item().toBool(), pruning);
    EXPECT_EQ(inputs.query.grad().isfinite().all().item().toBool(), pruning);
    EXPECT_EQ(inputs.log_forget.grad().isfinite().all().item().toBool(), pruning);
    if (!pruning) continue;
    for (const at::Tensor& input : {inputs.key, inputs.value}) {
      EXPECT_EQ(input.grad().narrow(1, 0, unread).abs().sum().item().toDouble(), 0.0);
      EXPECT_TRUE(input.grad().isfinite().all().item().toBool());
    }
  }
}

}  // namespace
}  // namespace lethe
