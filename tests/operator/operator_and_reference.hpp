#pragma once
// One problem computed by the operator and by the reference.

#include <optional>

#include "reference/problem.hpp"
#include "tests/operator/problem_tensors.hpp"

namespace lethe {

struct OperatorResult {
  at::Tensor values, log_normalizer, visited_pairs;
  at::Tensor query, key, value, log_forget;  ///< gradients
};

/// ∂loss/∂values of a random linear loss, [B, Tq, Hq, Dv] in the problem's dtype.
at::Tensor random_values_gradient(const Problem& problem);

/// The operator, forward and backward, as Torch runs it.
OperatorResult run_operator(const Problem& problem, const at::Tensor& values_gradient,
                            std::optional<double> log_pruning_tolerance = {});

/// Fails the test where values, log_normalizer or a gradient of any head is further from the reference than budget(dtype): of the operator,
/// which runs the first implementation, and of every other implementation that runs on the CPU.
void expect_equals_reference(const Problem& problem, std::optional<double> log_pruning_tolerance = {});

}  // namespace lethe
