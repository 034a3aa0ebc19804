#pragma once
// Local attention: softmax attention that forgets by age alone.

#include "reference/head.hpp"

/// Local attention: a query sees the last W tokens, its own among them, and nothing older.
///
///   o_i = Σ_{i − W < j ≤ i} softmax_j( scale · q_i·k_j ) v_j
///
/// No forget gate equals a window: to hide the token at distance W, a gate after it has to be zero, which hides every token
/// before that gate too (except for W = 1 and W ≥ Tk).
///
/// source   T2FW, Table 2, "local attention"; it leaves open whether its 32 tokens include the query's own; here they do
/// reduces  W ≥ Tk → softmax_attention; W = 1 → o_i = v_i
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; log_forget is not read and may be empty; window W ≥ 1, in tokens.
///          Tq ≤ Tk, query row i is at position Tk − Tq + i
/// throws   std::invalid_argument naming the input, the expected and the found shape or value
/// rounds   everything in Scalar; recurrent compensates its sums
namespace lethe::reference::local_attention {

/// One query at a time over the W tokens that a decoder would have kept.
///
/// returns  values [Tq,V]; state 0×0: the W tokens themselves are kept; log_normalizer [Tq]
/// cost     O(Tq W (K+V)) time, O(W (K+V)) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Eigen::Index window);

/// All queries at once: softmax(scale · Q Kᵀ, masked to a band) V.
///
/// returns  as recurrent
/// cost     O(Tq Tk (K+V)) time, O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Eigen::Index window);

/// chunk_length ≥ 1 positions at a time, each chunk over its own tokens and the W − 1 before it.
///
/// returns  as recurrent
/// cost     O(Tq (chunk_length + W) (K+V)) time, O(chunk_length (chunk_length + W)) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Eigen::Index window, Eigen::Index chunk_length);

/// ∂loss/∂(query, key, value) for ∂loss/∂values = values_gradient [Tq,V]; log_forget of the result is empty.
///
/// cost     O(Tq Tk (K+V)) time, O(Tk) extra memory
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Eigen::Index window,
                                 const Matrix<Scalar>& values_gradient);

}  // namespace lethe::reference::local_attention
