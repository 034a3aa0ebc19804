#pragma once
// Forgetting Attention a block of queries × keys at a time, in the order of the papers' kernels.

#include <limits>

#include "reference/computation_pruning.hpp"
#include "reference/head.hpp"

/// The papers' block algorithms for Forgetting Attention: no T × T matrix exists at any time, and the blocks that
/// computation pruning finds negligible are not visited.
///
/// source  Forgetting Transformer, Appendix D, Algorithms 1 and 2; the boundary of Adaptive Computation Pruning, Section
///         3. As printed, Algorithm 1 rescales O by diag(e^{m_old − m_new})⁻¹; without the inverse it is right
/// equals  forgetting_attention, and with a threshold δ the same over the visited blocks alone: values, log_normalizer
///         and gradients are those of attention in which the pruned keys do not exist
/// reads   what forgetting_attention reads; threshold δ ≤ 0, −∞ prunes nothing
/// throws  std::invalid_argument naming the input, the expected and the found shape or value
namespace lethe::reference::blockwise {

inline constexpr double kPruneNothing = -std::numeric_limits<double>::infinity();

/// Algorithm 1, a row of blocks at a time: online softmax over its key blocks.
///
/// returns  values [Tq,V]; state 0×0; log_normalizer [Tq]
/// cost     O(visited pairs · (K+V)) time, O(blocks.query (blocks.key + V)) extra memory
Output forward(const Head& head, Blocks blocks, double threshold = kPruneNothing);

/// Algorithm 2: the blocks once more, their weights recomputed from the forward pass's log_normalizer.
///
///   dc_t = Σ_j dS_tj − Σ_i dS_it,   dlog f_l = Σ_{t ≥ l} dc_t,   dlog f_0 = 0
///
/// The algorithm returns dc; the last line turns it into the gradient of the gates.
///
/// reads    output: of forward, with the same head, blocks and threshold; values_gradient [Tq,V] = ∂loss/∂values
/// cost     as forward
Gradients backward(const Head& head, const Output& output, const Matrix<double>& values_gradient, Blocks blocks,
                   double threshold = kPruneNothing);

}  // namespace lethe::reference::blockwise
