#pragma once
// Linear attention: attention whose whole past fits into one matrix.

#include "reference/head.hpp"

namespace lethe::reference {

/// Whether a variant with a state divides its output by what the same weights give on values of one.
enum class Normalized { kNo, kYes };

}  // namespace lethe::reference

/// Linear attention: the kernel exp(q·k) replaced by a plain product of features, so that the sum over the past can be
/// kept as a matrix, and nothing is ever forgotten.
///
///   S_t = S_{t−1} + k_t v_tᵀ,   z_t = z_{t−1} + k_t
///   o_t = scale · S_tᵀ q_t                       (Normalized::kNo)
///   o_t = S_tᵀ q_t / z_t·q_t                     (Normalized::kYes: any scale cancels)
///
/// The state is [K,V], the transpose of the papers'. Query and key are features φ(q), φ(k) here; feature_map.hpp
/// has maps to apply first.
///
/// source   Forgetting Transformer, Eq. 3 (parallel) and 4–6 (recurrent); Katharopoulos et al. 2020
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; initial_state [K,V] or empty; where normalized initial_normalizer [K]
///          or empty. Tq ≤ Tk, Tk ≥ 1, query row i is at position Tk − Tq + i
/// returns  values [Tq,V]; state [K,V]; normalizer [K] where normalized
/// throws   std::invalid_argument naming the input, the expected and the found shape or value; normalized also where a
///          query's z·q is zero
/// rounds   everything in Scalar
namespace lethe::reference::linear_attention {

/// One token at a time.
///
/// cost     O(T K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized);

/// All tokens at once: (Q Kᵀ, zero above the diagonal) V + Q S_0.
///
/// cost     O(Tq Tk (K+V)) time, O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized);

/// The parallel form inside chunks of chunk_length ≥ 1 positions, the state between them.
///
/// cost     O(T (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length);

/// ∂loss/∂(query, key, value, initial_state, and where normalized initial_normalizer).
///
/// reads    ∂loss/∂values [Tq,V], ∂loss/∂state [K,V], ∂loss/∂normalizer [K]; the last two may be empty, which is zeros
/// cost     O(T K V) time and memory
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient = {},
                                 const Vector<Scalar>& normalizer_gradient = {});

}  // namespace lethe::reference::linear_attention
