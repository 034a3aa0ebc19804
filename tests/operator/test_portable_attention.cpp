// The implementation for devices without kernels of ours, here on the CPU: the kernels' values for gates of every size, and its own boundary.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optimized/portable/operators.hpp"
#include "optimized/torch/forgetting_attention.hpp"
#include "reference/computation_pruning.hpp"
#include "tests/operator/problem_tensors.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

constexpr reference::Blocks kPortableBlocks{.query = 128, .key = 128};

Problem portable_problem(Gate gate) {
  const Shape shape{
      .batch = 1, .query_length = 500, .key_length = 600, .heads = 1, .query_heads = 2, .key_dim = 8, .value_dim = 8};
  return random_problem(shape, Dtype::kFloat64, gate, 41);
}

struct PortableResult {
  at::Tensor values, log_normalizer, visited_pairs, boundary;
  std::vector<at::Tensor> gradients;
};

PortableResult portably(const ProblemTensors& in, double scale, std::optional<double> tolerance, bool by_mass = false) {
  const std::optional<at::Tensor> no_bound;
  const AttentionInputs inputs{in.query,  in.key,   in.value, in.log_forget, scale,
                               tolerance, no_bound, true,     std::nullopt,  by_mass};
  const AttentionOutputs out = portable::forgetting_attention_forward(inputs);
  const AttentionGradients of = portable::forgetting_attention_backward(at::ones_like(out.values), inputs, out);
  return {out.values, out.log_normalizer, out.visited_pairs, out.boundary, {of.query, of.key, of.value, of.log_forget}};
}

void expect_equal_to_the_kernels(const Problem& problem) {
  ProblemTensors in = tensors_of(problem);
  const PortableResult actual = portably(in, problem.scale, std::nullopt);
  for (at::Tensor* input : {&in.query, &in.key, &in.value, &in.log_forget}) input->requires_grad_();
  const auto [values, log_normalizer, visited] =
      forgetting_attention_with_statistics(in.query, in.key, in.value, in.log_forget, problem.scale);
  values.sum().backward();
  EXPECT_TRUE(at::allclose(actual.values, values, 1e-9, 1e-10));
  EXPECT_TRUE(at::allclose(actual.log_normalizer, log_normalizer, 1e-9, 1e-9));
  const at::Tensor expected[] = {in.query.grad(), in.key.grad(), in.value.grad(), in.log_forget.grad()};
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::allclose(actual.gradients[i], expected[i], 1e-8, 1e-9)) << i;
}

TEST(PortableAttention, EqualsTheKernelsForEveryGateAndBesideHugeOnes) {
  for (const Gate gate : kEveryGate) {
    SCOPED_TRACE(gate_name(gate));
    Problem problem = portable_problem(gate);
    expect_equal_to_the_kernels(problem);
    for (const int64_t t : {37, 38, 150, 420}) problem.log_forget[2 * t] = -3e5;
    problem.log_forget[2 * 300 + 1] = -1e30;
    expect_equal_to_the_kernels(problem);
  }
}

TEST(PortableAttention, TakesNoFiniteGateForACut) {
  for (const double log_f : {-9999.0, -10001.0, -1e6}) {
    const ProblemTensors in{
        at::ones({1, 2, 1, 1}, at::kDouble), at::tensor({50.0 - log_f, 0.0}, at::kDouble).view({1, 2, 1, 1}),
        at::tensor({7.0, 1.0}, at::kDouble).view({1, 2, 1, 1}), at::tensor({0.0, log_f}, at::kDouble).view({1, 2, 1})};
    EXPECT_EQ(portably(in, 1.0, std::nullopt).values[0][1].item().toDouble(), 7.0);
    EXPECT_EQ(forgetting_attention(in.query, in.key, in.value, in.log_forget, 1.0)[0][1].item().toDouble(), 7.0);
  }
}

TEST(PortableAttention, VisitsFromTheBoundaryThatTheDefinitionGives) {
  for (const Gate gate : {Gate::kStrong, Gate::kInitial}) {
    const Problem problem = portable_problem(gate);
    for (const std::optional<double> tolerance : {std::optional<double>(), std::optional<double>(-10.0)}) {
      SCOPED_TRACE(std::string(gate_name(gate)) + ", tolerance " + std::to_string(tolerance.value_or(0.0)));
      const PortableResult actual = portably(tensors_of(problem), problem.scale, tolerance);
      for (int64_t h = 0; h < 2; ++h) {
        const Head head = head_of(problem, 0, h);
        const double bound = (1 + 1e-5) * reference::computation_pruning::logit_bound_from_norms(head);
        const double threshold = tolerance ? reference::computation_pruning::threshold(bound, 600, *tolerance)
                                           : std::numeric_limits<double>::lowest();
        const std::vector<int64_t> expected =
            reference::computation_pruning::boundary_by_walk(head.log_forget, 500, kPortableBlocks, threshold);
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_EQ(actual.boundary[0][h][static_cast<int64_t>(i)].item().toLong(), expected[i]) << "tile " << i;
        EXPECT_EQ(actual.visited_pairs[0][h].item().toLong(),
                  reference::computation_pruning::visited_pairs(500, 600, kPortableBlocks, expected));
      }
    }
  }
}

TEST(PortableAttention, PrunesByMassAndByTheLengthBetweenCuts) {
  for (const Gate gate : {Gate::kStrong, Gate::kInitial, Gate::kCutting}) {
    const Problem problem = portable_problem(gate);
    for (const bool by_mass : {false, true}) {
      SCOPED_TRACE(std::string(gate_name(gate)) + (by_mass ? " by mass" : " by weight"));
      const PortableResult actual = portably(tensors_of(problem), problem.scale, -10.0, by_mass);
      for (int64_t h = 0; h < 2; ++h) {
        namespace pruning = reference::computation_pruning;
        const Head head = head_of(problem, 0, h);
        const double bound = (1 + 1e-5) * pruning::logit_bound_from_norms(head);
        const auto masses =
            pruning::boundary_by_mass(head.log_forget, 500, kPortableBlocks, pruning::mass_threshold(bound, -10.0));
        for (int64_t row = 0; row < std::ssize(masses); ++row) {
          const int64_t first = 100 + 128 * row;
          int64_t begin = first, end = first + 1;
          while (begin > 0 && !std::isinf(head.log_forget[begin])) --begin;
          while (end < 600 && !std::isinf(head.log_forget[end])) ++end;
          const auto weights = pruning::boundary_by_search(head.log_forget, 500, kPortableBlocks,
                                                           pruning::threshold(bound, end - begin, -10.0));
          EXPECT_EQ(actual.boundary[0][h][row].item().toLong(), (by_mass ? masses : weights)[row]) << "tile " << row;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lethe
