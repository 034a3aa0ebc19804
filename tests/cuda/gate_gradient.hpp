#pragma once
// The gate's gradient in double on the device: for sequences that the reference takes too long for.

#include <vector>

#include "reference/problem.hpp"

namespace lethe::testing {

/// d log f of one head of one batch entry without cuts, from the definition: −Σ_{j ≥ l} Σ_{i ≥ j} P_ij (dO_i·v_j − Σ_j P_ij dO_i·v_j).
/// The row sums of dS are 0 in exact arithmetic and left out.
///
/// reads    problem: batch, heads and query_heads 1, Tq = Tk; grad_values [T, V]
/// returns  [T]; entry 0 is 0
/// cost     O(T² (K + V)) double operations on the device
std::vector<double> gate_gradient(const Problem& problem, const std::vector<double>& grad_values);

}  // namespace lethe::testing
