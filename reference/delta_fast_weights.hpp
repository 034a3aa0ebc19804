#pragma once
// The delta rule: a write that first takes away what the key already holds.

#include "reference/head.hpp"

/// Fast weights by the delta rule: what the state returns for the key is compared with the value, and only the difference is
/// written. It can overwrite one key and leave the others, where a gate can but forget all.
///
///   δ_t = β_t (v_t − S_{t−1}ᵀ k_t)          S_t = S_{t−1} + k_t δ_tᵀ          o_t = scale · S_tᵀ q_t
///
/// One step of gradient descent on ½‖Sᵀk_t − v_t‖² with learning rate β_t. S_t = (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ, so
/// that nothing grows as long as β_t |k_t|² ≤ 2; beyond it, the state can diverge.
///
/// source   Schlag 2021; Mao 2022, Eq. 6, with the gate g as β and the read after the write. There keys and queries are also
///          divided by their sum (sum_norm) before they come here
/// reduces  keys orthonormal, β ≡ 1, S_0 = 0 → additive_fast_weights
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; write_strength [Tk] = β ≥ 0; initial_state [K,V], empty is zeros.
///          Tq ≤ Tk, query row i stands at position Tk − Tq + i. Gates are not read: gated_delta_fast_weights has them
/// throws   std::invalid_argument naming the input, the expected and the found shape or value
namespace lethe::reference::delta_fast_weights {

/// One token at a time: write, read.
///
/// returns  values [Tq,V]; state [K,V] after the last key. Carried on as initial_state, it gives the same bits as one run
/// cost     O(Tk K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head);

/// All tokens at once: with A = strictlower(diag(β) K Kᵀ),
///
///   Δ = (I + A)⁻¹ diag(β) (V − K S_0)          O = scale · (Q S_0 + lower(Q Kᵀ) Δ)          S_T = S_0 + Kᵀ Δ
///
/// returns  as recurrent
/// cost     O(Tk² (K+V)) time, O(Tk²) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head);

/// The same in chunks, from state to state.
///
/// reads    chunk_length ≥ 1
/// returns  as recurrent
/// cost     O(Tk (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Eigen::Index chunk_length);

/// ∂loss/∂input of every input, a token at a time from the last one back; dS is ∂loss/∂S_t.
///
///   dδ = dSᵀ k_t     dβ_t = dδ·(v_t − S_{t−1}ᵀ k_t)     dv_t = β_t dδ     dk_t = dS δ_t − S_{t−1} dv_t
///   dq_t = scale · S_t do_t     dS_{t−1} = dS − k_t dv_tᵀ, and scale · q_{t−1} do_{t−1}ᵀ of the read there
///
/// reads    values_gradient [Tq,V]; state_gradient [K,V], empty is zeros
/// returns  query, key, value, write_strength, initial_state
/// cost     O(Tk K V) time and memory: every state is kept
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                 const Matrix<Scalar>& state_gradient = {});

/// The rule as the authors' code of Mao 2022 runs it: each token reads the state that it finds, o_t = scale · S_{t−1}ᵀ q_t,
/// where the paper's equations read what it leaves behind. The two differ by scale · (q_t·k_t) δ_t.
///
/// returns  as recurrent; the state is the same
/// cost     as recurrent
template <typename Scalar>
BasicOutput<Scalar> recurrent_reading_first(const BasicHead<Scalar>& head);

/// The gradients of recurrent_reading_first; arguments, result and cost as gradients.
template <typename Scalar>
BasicGradients<Scalar> gradients_reading_first(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                               const Matrix<Scalar>& state_gradient = {});

}  // namespace lethe::reference::delta_fast_weights
