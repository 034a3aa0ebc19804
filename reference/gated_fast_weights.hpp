#pragma once
// The gated rule: one gate forgets and, by what it leaves open, writes.

#include "reference/linear_attention.hpp"

/// Gated fast weights: the state is a running mean, in which a scalar gate decides how much a new token counts.
///
///   S_t = f_t S_{t−1} + (1 − f_t) k_t v_tᵀ,   z_t = f_t z_{t−1} + (1 − f_t) k_t
///   o_t = scale · S_tᵀ q_t                       (Normalized::kNo)
///   o_t = S_tᵀ q_t / z_t·q_t                     (Normalized::kYes: any scale cancels)
///
/// Token j has the weight w_tj = (1 − f_j) f_{j+1} … f_t at position t, and Σ_j w_tj = 1 − f_1 … f_t: what is missing to
/// one is the initial state's. The rule is computed as gated_linear_attention on (1 − f_t) k_t; 1 − f = −expm1(log f)
/// keeps its digits where f is nearly one.
///
/// source   Peng 2021 (RFA-Gate); Mao 2022, Eq. 5, where the gate is g
/// reduces  to nothing simpler: the write factor closes as the gate opens. A constant gate and a normalizer, from a state of
///          zeros, are gated_linear_attention, since 1 − f cancels
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; log_forget [Tk] = log f, natural log, ≤ 0, −∞ keeps the token alone;
///          initial_state [K,V] or empty; where normalized initial_normalizer [K] or empty. Tq ≤ Tk, Tk ≥ 1, query row i
///          is at position Tk − Tq + i
/// returns  values [Tq,V]; state [K,V]; normalizer [K] where normalized
/// throws   std::invalid_argument naming the input, the expected and the found shape or value; normalized also where a
///          query's z·q is zero, as happens before the first gate that is not exactly 1
/// rounds   everything in Scalar, as gated_linear_attention
namespace lethe::reference::gated_fast_weights {

/// One token at a time: gate, write, read.
///
/// cost     O(Tk K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized);

/// All tokens at once: (w ∘ Q Kᵀ) V + the initial state, faded.
///
/// cost     O(Tq Tk (K+V)) time, O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized);

/// The parallel form inside chunks of chunk_length ≥ 1 positions, the state between them.
///
/// cost     O(Tk (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length);

/// ∂loss/∂(query, key, value, log_forget, initial_state, and where normalized initial_normalizer). Those of
/// gated_linear_attention on k' = (1 − f) k, and through it
///
///   dk_t = (1 − f_t) dk'_t          dlog f_t has the additional term −f_t k_t·dk'_t
///
/// reads    ∂loss/∂values [Tq,V], ∂loss/∂state [K,V], ∂loss/∂normalizer [K]; the last two may be empty, which is zeros
/// cost     O(Tk K V) time and memory
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient = {},
                                 const Vector<Scalar>& normalizer_gradient = {});

}  // namespace lethe::reference::gated_fast_weights
