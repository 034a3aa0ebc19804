#pragma once
// Adaptive Computation Pruning: which blocks of queries × keys are negligible under a forget gate.

#include <cstdint>
#include <vector>

#include "reference/head.hpp"

namespace lethe::reference {

/// How many queries and keys a block holds. The last block of each may be shorter.
struct Blocks {
  int64_t query = 64;
  int64_t key = 64;
};

}  // namespace lethe::reference

/// Computation pruning skips the blocks whose weights sum to less than a tolerance ε in every row.
///
///   δ = −2U − log T + log ε,  U ≥ max_ij |scale · q_i·k_j|
///   D_ij < δ  ⇒  P_ij ≤ exp(s_ij − s_ii + D_ij) ≤ exp(2U + D_ij) < ε/T  ⇒  a query loses less than ε in all
///
/// That is the paper's boundary, by weight: it allows each of T keys the largest weight of all. The boundary by mass sums the
/// weights instead, which the gate alone bounds, too. A_n = log Σ_{j ≤ n} exp(D_nj) is the mass of the keys up to n as key n's
/// own query sees it, exp(A_n) = 1 + f_n exp(A_{n−1}), and D_ij = D_in + D_nj:
///
///   Σ_{j ≤ n} P_ij ≤ Σ_{j ≤ n} exp(2U + D_ij) = exp(2U + D_in + A_n) < ε  ⇐  D_in < −2U + log ε − A_n
///
/// 0 ≤ A_n ≤ log(n + 1) ≤ log T: it never visits a block that the boundary by weight skips, and needs no T.
///
/// Key blocks are pruned from the oldest on: since D falls with distance, a block's largest entry is that of its first
/// query and its last key, and the first block that a row of blocks visits never moves back from one row to the next.
/// A block with a pair on the diagonal is always visited, for D_ii = 0 ≥ δ.
///
/// source  by weight: Adaptive Computation Pruning, Section 3 and Appendix A; by mass: ours. The paper's inline bound exp(2U − D_ij) has the wrong
///         sign; Appendix A is right
/// reads   log_forget [Tk], natural log, ≤ 0; queries are the last query_length positions
namespace lethe::reference::computation_pruning {

/// δ = −2U − log T + log ε; −∞, which prunes nothing, for log ε = −∞.
///
/// reads   logit_bound U ≥ 0; length T ≥ 1, of the keys; log_tolerance log ε ≤ 0
/// throws  std::invalid_argument naming the argument outside its domain
double threshold(double logit_bound, int64_t length, double log_tolerance);

/// −2U + log ε, of the boundary by mass.
///
/// reads, throws  as threshold
double mass_threshold(double logit_bound, double log_tolerance);

/// U from the tensors: |scale| · max_i ‖q_i‖ · max_j ‖k_j‖.
double logit_bound_from_norms(const Head& head);

/// U from the gains of the RMSNorms that made query and key: |scale| · max |γq| · max |γk| · d, which is γq γk √d at the
/// usual scale 1/√d. It bounds every input that the layer can ever see.
///
/// reads   query_gain, key_gain: one entry a dimension, d of them
/// throws  std::invalid_argument where their sizes differ
double logit_bound_from_gains(const Vector<double>& query_gain, const Vector<double>& key_gain, double scale);

/// The first key block that each query block visits, by one walk along the boundary: the next row of blocks continues
/// where the last one stopped.
///
/// source   Adaptive Computation Pruning, Algorithm 1. As printed it steps past a block before storing it and never
///          tests that one again, so that it stores one too many in the first row and skips the diagonal; here a block
///          is stepped past only when it is pruned
/// returns  a column of blocks for each of the ceil(query_length / blocks.query) rows
/// throws   std::invalid_argument for block sizes < 1, query_length outside [0, Tk], a threshold > 0 or NaN
/// cost     O(rows + columns) of blocks, O(Tk) for the prefix sum
std::vector<int64_t> boundary_by_walk(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                      double threshold);

/// A_n of every key [Tk]; 0 at a cut, which no earlier key's mass passes.
///
/// cost  O(Tk)
Vector<double> log_mass(const Vector<double>& log_forget);

/// The boundary by mass: the first key block that each query block visits.
///
/// reads             mass_threshold: as the function of that name returns it
/// returns, throws   as boundary_by_walk
/// cost              O(rows + columns) of blocks, O(Tk) for the sums
std::vector<int64_t> boundary_by_mass(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                      double mass_threshold);

/// boundary_by_walk, a binary search for each row: for kernels whose rows start in parallel.
///
/// cost     O(rows · log columns) of blocks, O(Tk) for the prefix sum
std::vector<int64_t> boundary_by_search(const Vector<double>& log_forget, int64_t query_length, Blocks blocks,
                                        double threshold);

/// Σ_j P_ij over the keys that the boundary skips, for each query of unpruned Forgetting Attention [Tq].
///
/// reads   boundary: as returned above for the same blocks
/// throws  std::invalid_argument where the boundary's size doesn't fit
/// cost    O(Tq Tk K) time, O(Tk) extra memory
Vector<double> discarded_weight(const Head& head, Blocks blocks, const std::vector<int64_t>& boundary);

/// Causal pairs (i, j), j ≤ i, inside the blocks that the boundary leaves.
///
/// reads   boundary: as returned above for the same blocks; an empty one prunes nothing
/// throws  std::invalid_argument where the boundary's size doesn't fit
int64_t visited_pairs(int64_t query_length, int64_t key_length, Blocks blocks, const std::vector<int64_t>& boundary);

}  // namespace lethe::reference::computation_pruning
