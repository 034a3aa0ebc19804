#pragma once
// The delta rule: a write that first takes away what the key already holds.

#include "reference/linear_attention.hpp"

/// Fast weights by the delta rule: only the difference between the value and what the state returns for the key is written.
/// It can overwrite one key and leave the others, where a gate fades all of them.
///
///   δ_t = β_t (v_t − S_{t−1}ᵀ k_t)          S_t = S_{t−1} + k_t δ_tᵀ
///   o_t = scale · S_tᵀ q_t                                             (Normalized::kNo)
///   o_t = S_tᵀ q_t / z_t·q_t with z_t = z_{t−1} + k_t, which no β gates   (Normalized::kYes: any scale cancels)
///
/// One step of gradient descent on ½‖Sᵀk_t − v_t‖² with learning rate β_t. S_t = (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ, whose
/// matrix has the eigenvalue 1 − β_t |k_t|² along k_t: nothing grows while β_t |k_t|² ≤ 2; beyond, the state can diverge.
///
/// source   Schlag 2021; Mao 2022, Eq. 6, with the gate g as β and the read after the write, and its Eq. 3 for z. Keys and
///          queries are meant to be divided by their sum first (feature_map::sum_normalized)
/// reduces  keys orthonormal, β ≡ 1, S_0 = 0 → additive_fast_weights
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; write_strength [Tk] = β ≥ 0; initial_state [K,V] or empty; where
///          normalized initial_normalizer [K] or empty. Tq ≤ Tk, Tk ≥ 1, query row i is at position Tk − Tq + i. Gates
///          are not read: gated_delta_fast_weights has them
/// returns  values [Tq,V]; state [K,V] after the last key; normalizer [K] where normalized
/// throws   std::invalid_argument naming the input, the expected and the found shape or value; normalized also where a
///          query's z·q is zero
/// rounds   everything in Scalar. Corrections build on each other: while β_t |k_t|² ≤ 2 an error never grows; beyond, errors
///          and state grow alike
namespace lethe::reference::delta_fast_weights {

/// One token at a time: write, read.
///
/// returns  a state that, carried on as initial_state, gives the same bits as one run
/// cost     O(Tk K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized);

/// All tokens at once: with A = strictlower(diag(β) K Kᵀ),
///
///   Δ = (I + A)⁻¹ diag(β) (V − K S_0)          O = scale · (Q S_0 + lower(Q Kᵀ) Δ)          S_T = S_0 + Kᵀ Δ
///
/// cost     O(Tk² (K+V)) time, O(Tk²) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized);

/// The same in chunks of chunk_length ≥ 1 positions, from state to state.
///
/// cost     O(Tk (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length);

/// ∂loss/∂input of every input, a token at a time from the last one back; dS is ∂loss/∂S_t.
///
///   dδ = dSᵀ k_t     dβ_t = dδ·(v_t − S_{t−1}ᵀ k_t)     dv_t = β_t dδ     dk_t = dS δ_t − S_{t−1} dv_t
///   dq_t = scale · S_t do_t     dS_{t−1} = dS − k_t dv_tᵀ, and scale · q_{t−1} do_{t−1}ᵀ of the read there
///
/// Normalized, with n_t = S_tᵀ q_t and d_t = z_t·q_t: do / d is the gradient of n, and −do·o / d that of d, which is
/// linear_attention on values of one.
///
/// reads    ∂loss/∂values [Tq,V], ∂loss/∂state [K,V], ∂loss/∂normalizer [K]; the last two may be empty, which is zeros
/// returns  query, key, value, write_strength, initial_state, and where normalized initial_normalizer
/// cost     O(Tk K V) time and memory: every state is kept
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient = {},
                                 const Vector<Scalar>& normalizer_gradient = {});

/// The rule as the authors' code of Mao 2022 runs it: each token reads the state that it finds, o_t = scale · S_{t−1}ᵀ q_t,
/// where the paper's equations read the one after its write. The two differ by scale · (q_t·k_t) δ_t. Not normalized.
///
/// returns  values [Tq,V]; state [K,V], that of recurrent
/// cost     as recurrent
template <typename Scalar>
BasicOutput<Scalar> recurrent_reading_first(const BasicHead<Scalar>& head);

/// The gradients of recurrent_reading_first; arguments, result and cost as those of gradients, not normalized.
template <typename Scalar>
BasicGradients<Scalar> gradients_reading_first(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                               const Matrix<Scalar>& state_gradient = {});

}  // namespace lethe::reference::delta_fast_weights
