#pragma once
// ALiBi: attention with a linear bias, between softmax attention and Forgetting Attention.

#include "reference/head.hpp"

/// ALiBi: logits that fall linearly with the distance, by a slope that the data cannot change.
///
///   o_i = Σ_{j ≤ i} softmax_j( scale · q_i·k_j − (i − j) m ) v_j
///
/// source   Press et al. 2022; Forgetting Transformer, "Connection to ALiBi"
/// reduces  m = 0 → softmax_attention
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; log_forget is not read and may be empty; slope m ≥ 0, in nats a
///          position. Tq ≤ Tk, query row i is at position Tk − Tq + i
/// throws   std::invalid_argument naming the input, the expected and the found shape or value
namespace lethe::reference::alibi {

/// The slope of head `head` of `heads` as ALiBi sets it, for a power of two of heads: m = 2^(−8 (head + 1) / heads).
///
/// throws   std::invalid_argument where head is outside [0, heads)
double slope_of(int64_t head, int64_t heads);

/// One query at a time, from its own position back; each key further costs one slope more.
///
/// returns  values [Tq,V]; state 0×0: the whole past is needed; log_normalizer [Tq]
/// cost     O(Tq Tk (K+V)) time, O(V) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Scalar slope);

/// One row of `recurrent`, 0 ≤ row < Tq.
///
/// returns  values [1,V], log_normalizer [1], exact to about 1e-14 in double at any length
/// cost     O(Tk (K+V)) time
template <typename Scalar>
BasicOutput<Scalar> one_query(const BasicHead<Scalar>& head, Scalar slope, Eigen::Index row);

/// All queries at once: softmax(scale · Q Kᵀ + D) V with D_ij = −(i − j) m.
///
/// returns  as recurrent
/// cost     O(Tq Tk (K+V)) time, O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Scalar slope);

/// ∂loss/∂(query, key, value) for ∂loss/∂values = values_gradient [Tq,V]; log_forget of the result is empty.
///
/// cost     O(Tq Tk (K+V)) time, O(Tk) extra memory
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Scalar slope, const Matrix<Scalar>& values_gradient);

}  // namespace lethe::reference::alibi
