#include "tests/operator/operator_and_reference.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "optimized/torch/forgetting_attention.hpp"
#include "reference/agreement.hpp"
#include "reference/forgetting_attention.hpp"
#include "tests/support/heads.hpp"

namespace lethe {
namespace {

// The gate's gradient is a running sum of terms of both signs, over up to Tk positions: it may be a twentieth of its terms, and the rounding is that
// of the terms. (Double keeps 1e-12 even so.)
double gate_budget(Dtype dtype) { return dtype == Dtype::kFloat64 ? budget(dtype) : 20.0 * budget(dtype); }

// A row that sees only itself has no gradient but of its value: the others are a rounding of zero there, a unit or two in the last place of ∂o·v,
// which the terms that cancel share. Such zeros are measured against this share of ‖∂value‖.
constexpr double kFloorShare = 0.1;

Vector<double> vector_of(const std::vector<double>& data) {
  return Eigen::Map<const Vector<double>>(data.data(), data.size());
}

void expect_close(const char* what, const std::vector<double>& actual, std::span<const double> expected, double allowed,
                  double floor = 1e-300) {
  const Agreement agreement = compare(actual, expected, allowed, floor);
  EXPECT_TRUE(agreement.passed()) << what << ": " << agreement.describe();
}

}  // namespace

OperatorResult run_operator(const Problem& problem, const at::Tensor& values_gradient,
                            std::optional<double> log_pruning_tolerance) {
  ProblemTensors inputs = tensors_of(problem);
  for (at::Tensor* input : {&inputs.query, &inputs.key, &inputs.value, &inputs.log_forget}) input->requires_grad_();
  const auto [values, log_normalizer, visited_pairs] = forgetting_attention_with_statistics(
      inputs.query, inputs.key, inputs.value, inputs.log_forget, problem.scale, log_pruning_tolerance);
  values.backward(values_gradient);
  return {values.detach(),   log_normalizer,      visited_pairs,           inputs.query.grad(),
          inputs.key.grad(), inputs.value.grad(), inputs.log_forget.grad()};
}

namespace {

// One implementation, called without dispatch and autograd.
OperatorResult run_implementation(const AttentionImplementation& row, const Problem& problem,
                                  const at::Tensor& values_gradient, std::optional<double> log_pruning_tolerance) {
  const ProblemTensors in = tensors_of(problem);
  const std::optional<at::Tensor> no_bound;
  const AttentionInputs inputs{in.query, in.key, in.value, in.log_forget, problem.scale, log_pruning_tolerance,
                               no_bound, true};
  const AttentionOutputs out = row.forward(inputs);
  const AttentionGradients gradients = row.backward(values_gradient, inputs, out);
  return {out.values,    out.log_normalizer, out.visited_pairs,   gradients.query,
          gradients.key, gradients.value,    gradients.log_forget};
}

// By name, the operator as Torch runs it for the row that dispatch chooses.
std::vector<std::pair<std::string, OperatorResult>> run_every_implementation(
    const Problem& problem, const at::Tensor& values_gradient, std::optional<double> log_pruning_tolerance) {
  std::vector<std::pair<std::string, OperatorResult>> results;
  for (const AttentionImplementation& row : attention_implementations()) {
    if (!is_for(row, at::kCPU)) continue;
    results.emplace_back(row.name, results.empty()
                                       ? run_operator(problem, values_gradient, log_pruning_tolerance)
                                       : run_implementation(row, problem, values_gradient, log_pruning_tolerance));
  }
  return results;
}

}  // namespace

at::Tensor random_values_gradient(const Problem& problem) {
  Shape shape = problem.shape;
  shape.key_dim = shape.value_dim;
  const Problem other = random_problem(shape, problem.dtype, Gate::kZero, 99);  // its query has the shape of our values
  return tensors_of(other).query;
}

void expect_equals_reference(const Problem& problem, std::optional<double> log_pruning_tolerance) {
  const Shape& shape = problem.shape;
  const at::Tensor values_gradient = random_values_gradient(problem);
  const auto results = run_every_implementation(problem, values_gradient, log_pruning_tolerance);
  const double allowed = budget(problem.dtype);
  const int64_t group = shape.query_heads / shape.heads;
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t key_head = 0; key_head < shape.heads; ++key_head) {
      Gradients sum;  // of the key head, over the query heads that read it
      for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
        SCOPED_TRACE("batch " + std::to_string(batch) + ", head " + std::to_string(head));
        const Head inputs = head_of(problem, batch, head);
        const Output output = reference::forgetting_attention::parallel(inputs);
        const std::vector<double> flat_gradient = head_of(values_gradient, batch, head);
        const Gradients gradients = reference::forgetting_attention::gradients(
            inputs, Matrix<double>(
                        Eigen::Map<const Matrix<double>>(flat_gradient.data(), shape.query_length, shape.value_dim)));
        const double floor = kFloorShare * gradients.value.norm();
        for (const auto& [name, result] : results) {
          SCOPED_TRACE(name);
          expect_close("values", head_of(result.values, batch, head), flat(output.values), allowed);
          const Vector<double> normalizer = vector_of(head_of(result.log_normalizer, batch, head));
          const double sums = problem.dtype == Dtype::kFloat64 ? 1e-11 : 1e-4;  // absolute: the allowance of the bias
          EXPECT_LE((normalizer - output.log_normalizer).cwiseAbs().maxCoeff(), sums);
          expect_close("query's gradient", head_of(result.query, batch, head), flat(gradients.query), allowed, floor);
          expect_close("log_forget's gradient", head_of(result.log_forget, batch, head), flat(gradients.log_forget),
                       gate_budget(problem.dtype), floor);
        }
        if (head == key_head * group) {
          sum = gradients;
        } else {
          sum.key += gradients.key;
          sum.value += gradients.value;
        }
      }
      for (const auto& [name, result] : results) {
        SCOPED_TRACE(name);
        expect_close("key's gradient", head_of(result.key, batch, key_head), flat(sum.key), allowed,
                     kFloorShare * sum.value.norm());
        expect_close("value's gradient", head_of(result.value, batch, key_head), flat(sum.value), allowed);
      }
    }
  }
}

}  // namespace lethe
