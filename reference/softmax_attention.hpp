#pragma once
// Causal softmax attention, where the family begins.

#include "reference/head.hpp"

/// Causal softmax attention: every earlier token counts by its content alone, however old it is.
///
///   o_i = Σ_{j ≤ i} softmax_j( scale · q_i·k_j ) v_j
///
/// source  Forgetting Transformer, Eq. 1–2
/// reads   query [Tq,K], key [Tk,K], value [Tk,V]; log_forget is not read and may be empty. Tq ≤ Tk, query row i is
///         at position Tk − Tq + i
/// throws  std::invalid_argument naming the input, the expected and the found shape
namespace lethe::reference::softmax_attention {

/// One query at a time, its keys one at a time.
///
/// returns  values [Tq,V]; state 0×0: the whole past is needed; log_normalizer [Tq]
/// cost     O(Tq Tk (K+V)) time, O(V) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head);

/// One row of `recurrent`, 0 ≤ row < Tq.
///
/// returns  values [1,V], log_normalizer [1], exact to about 1e-14 in double at any length
/// cost     O(Tk (K+V)) time
template <typename Scalar>
BasicOutput<Scalar> one_query(const BasicHead<Scalar>& head, Eigen::Index row);

/// All queries at once: softmax(scale · Q Kᵀ, masked) V.
///
/// returns  as recurrent
/// cost     O(Tq Tk (K+V)) time, O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head);

/// ∂loss/∂(query, key, value) for ∂loss/∂values = values_gradient [Tq,V]; log_forget of the result is empty.
///
/// cost     O(Tq Tk (K+V)) time, O(Tk) extra memory
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient);

}  // namespace lethe::reference::softmax_attention
