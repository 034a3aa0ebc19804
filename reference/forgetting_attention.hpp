#pragma once
// Forgetting Attention, the most general member of the softmax family.

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

/// One query at a time, from its own position back, carrying the decay: D_{i,j−1} = D_ij + log f_j.
///
/// returns  values [Tq,V]; state 0×0: the whole past is needed; log_normalizer [Tq]
/// cost     O(Tq Tk (K+V)) time, O(V) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head);

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

/// ∂loss/∂(query, key, value, log_forget) for ∂loss/∂values = values_gradient [Tq,V].
///
///   dlog f_l = Σ_{i ≥ l > j} dS_ij with dS = ∂loss/∂logits; exactly 0 for l = 0, and 0 where log f_l = −∞
///
/// cost     O(Tq Tk (K+V)) time, O(Tk) extra memory
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient);

}  // namespace lethe::reference::forgetting_attention
