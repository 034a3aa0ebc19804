#pragma once
// Outputs and gradients in double on the device: for sequences on which the reference takes too long.

#include <vector>

#include "reference/problem.hpp"

namespace lethe::testing {

struct DoubleGradients {
  std::vector<double> values, query, key, value;  ///< [T, D]
  std::vector<double> log_forget;                 ///< [T]; 0 at entry 0 and at cuts
};

/// One head of one batch entry, from the definition, with the gate's gradient as −Σ_{j ≥ l} Σ_{i ≥ j} dS_ij: the row sums of dS are 0 in
/// exact arithmetic and left out.
///
/// reads    problem: batch, heads and query_heads 1, Tq = Tk, key_dim = value_dim ≤ 256; grad_values [T, D]
/// cost     O(T² D) double operations on the device
DoubleGradients double_gradients(const Problem& problem, const std::vector<double>& grad_values);

}  // namespace lethe::testing
