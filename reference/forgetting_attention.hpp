#pragma once
// Forgetting Attention, the most general member of the softmax family.

#include <limits>
#include <vector>

#include "reference/head.hpp"

/// Forgetting Attention: softmax attention whose logits decay with a data-dependent forget gate.
///
///   D_ij = Σ_{j < l ≤ i} log f_l,   D_ii = 0
///   o_i = Σ_{j ≤ i} softmax_j( scale · q_i·k_j + D_ij ) v_j
///
/// source   Forgetting Transformer, Eq. 11–13
/// reduces  log f ≡ 0 → softmax_attention; log f ≡ −m → alibi with slope m
/// reads    query [Tq,K], key [Tk,K], value [Tk,V], log_forget [Tk], natural log, ≤ 0; −∞ cuts: no later query sees
///          a key before that position. Tq ≤ Tk, query row i is at position Tk − Tq + i. Entry 0 of log_forget is
///          in no D_ij
/// throws   std::invalid_argument naming the input, the expected and the found shape or value
namespace lethe::reference::forgetting_attention {

/// The keys that a query at position i sees, beside the causal rule: those of [first_key(i), i].
///
///   first_key(i) = max( start of i's sequence, i − window + 1 )
///
/// Neither is a gate: a gate of zero hides all that is before it from every later query, and a window moves with the query. A start is one: what a
/// query sees of its own sequence is the same with log f = −∞ at the start.
struct Sight {
  Eigen::Index window =
      std::numeric_limits<Eigen::Index>::max();  ///< ≥ 1, keys that a query sees at most, its own included
  /// Packed sequences: the first token of each, then Tk; ascending, equal neighbours are an empty sequence. Needs Tq = Tk. Empty: one sequence
  std::vector<Eigen::Index> cu_seqlens{};

  Eigen::Index first_key(Eigen::Index position) const;
};

/// One query at a time, from its own position back, carrying the decay: D_{i,j−1} = D_ij + log f_j.
///
/// returns  values [Tq,V]; state 0×0: the whole past is needed; log_normalizer [Tq]
/// cost     O(Tq Tk (K+V)) time, O(V) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head);

/// The same of the keys that each query sees.
///
/// throws   std::invalid_argument for a window < 1, or cu_seqlens that don't begin with 0, end with Tk and ascend
template <typename Scalar>
BasicOutput<Scalar> recurrent_within(const BasicHead<Scalar>& head, const Sight& sight);

/// One row of `recurrent`: for sequences too long to compute whole.
///
/// reads    row: 0 ≤ row < Tq
/// returns  values [1,V], log_normalizer [1], exact to about 1e-14 in double at any length
/// cost     O(Tk (K+V)) time; O(Tk) to check log_forget
template <typename Scalar>
BasicOutput<Scalar> one_query(const BasicHead<Scalar>& head, Eigen::Index row);

/// All queries at once, D as a difference of prefix sums: softmax(scale · Q Kᵀ + D) V.
///
/// returns  as recurrent
/// cost     O(Tq Tk (K+V)) time, O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head);
template <typename Scalar>
BasicOutput<Scalar> parallel_within(const BasicHead<Scalar>& head, const Sight& sight);

/// ∂loss/∂(query, key, value, log_forget) for ∂loss/∂values = values_gradient [Tq,V].
///
///   dlog f_l = Σ_{i ≥ l > j} dS_ij with dS = ∂loss/∂logits; exactly 0 for l = 0, and 0 where log f_l = −∞
///
/// cost     O(Tq Tk (K+V)) time, O(Tk) extra memory
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient);
template <typename Scalar>
BasicGradients<Scalar> gradients_within(const BasicHead<Scalar>& head, const Sight& sight,
                                        const Matrix<Scalar>& values_gradient);

}  // namespace lethe::reference::forgetting_attention
