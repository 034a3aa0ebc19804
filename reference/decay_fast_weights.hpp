#pragma once
// Decaying fast weights, the most general member of the family of gated states.

#include "reference/head.hpp"

/// Fast weights that decay: a linear state in which every entry has a gate of its own, the product of one gate of its row
/// and one of its column.
///
///   S_t = diag(a_t) S_{t−1} diag(b_t) + k_t v_tᵀ          o_t = scale · S_tᵀ q_t
///   o_t = scale · b_{1…t} ⊙ S_0ᵀ (a_{1…t} ⊙ q_t) + scale · Σ_{s ≤ t} ((a_{s+1…t} ⊙ q_t)·k_s) (b_{s+1…t} ⊙ v_s)
///
/// The paper writes the transposed state, [V,K]; here it is [K,V] in every variant. The gate has rank one: rows and columns
/// of the state never mix, which is why a parallel form exists at all.
///
/// source   Mao 2022, "Fine-Tuning Pre-trained Transformers into Decaying Fast Weights", Eq. 7, where
///          the row gate is f and the column gate z
/// reduces  a ≡ b ≡ 1 → additive_fast_weights; b ≡ 1, all a_t equal → a scalar gate, and gated_fast_weights with (1 − a_t) v_t
///          for v_t; b ≡ 1 → gated linear attention. (a_t / c_t, c_t b_t) is the same function for every scalar c_t
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; log_key_gate [Tk,K] = log a and log_value_gate [Tk,V] = log b, natural
///          logs, ≤ 0, −∞ forgets all, empty forgets nothing; initial_state [K,V], empty is zeros. Tq ≤ Tk, query row i
///          is at position Tk − Tq + i
/// throws   std::invalid_argument naming the input, the expected and the found shape or value
/// rounds   everything in Scalar. The recurrent form multiplies gates, T roundings; the others take exponentials of
///          compensated sums of logs, one rounding at any length
namespace lethe::reference::decay_fast_weights {

/// One token at a time: gate, write, read.
///
/// returns  values [Tq,V]; state [K,V] after the last key. Carried on as initial_state, it gives the same bits as one run
/// cost     O(Tk K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head);

/// All pairs at once, each with its own decay: attention without a softmax, gated on both sides.
///
/// returns  as recurrent
/// cost     O(Tq Tk (K+V)) time, as many exponentials; O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head);

/// Parallel within chunks, recurrent from chunk to chunk. Inside a chunk, pairs in the same block of 16 positions are taken
/// one by one and the others by matrix products; no exponent is ever positive, so that gates from exactly 0 to exactly 1 are
/// safe.
///
/// reads    chunk_length ≥ 1
/// returns  as recurrent
/// cost     O(Tk (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Eigen::Index chunk_length);

/// ∂loss/∂input of every input, from stored states.
///
///   dS_t = scale · q_t do_tᵀ + diag(a_{t+1}) dS_{t+1} diag(b_{t+1})          dS_T also has state_gradient
///   dq_t = scale · S_t do_t     dk_t = dS_t v_t     dv_t = dS_tᵀ k_t     dS_0 = diag(a_1) dS_1 diag(b_1)
///   dlog a_t = Σ_v ( diag(a_t) S_{t−1} diag(b_t) ⊙ dS_t )     dlog b_t = Σ_k of the same
///
/// reads    values_gradient [Tq,V]; state_gradient [K,V], empty is zeros
/// returns  all but log_forget, write_strength and initial_normalizer; a gate that the head lacks has an empty one
/// cost     O(Tk K V) time and memory: every state is kept
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                 const Matrix<Scalar>& state_gradient = {});

/// The same gradients without stored states: a forward scan gives dq, a backward scan dk and dv, and the gates' gradients are
/// running sums of these.
///
///   dlog a_t = dlog a_{t+1} + q_t ⊙ dq_t − k_t ⊙ dk_t          dlog a_{T+1} = Σ_v S_T ⊙ state_gradient
///   dlog b_t = dlog b_{t+1} + o_t ⊙ do_t − v_t ⊙ dv_t          dlog b_{T+1} = Σ_k S_T ⊙ state_gradient
///
/// Because Σ_v S_t ⊙ dS_t is k_t ⊙ dk_t + dlog a_t by the recurrence of S_t, and q_t ⊙ dq_t + dlog a_{t+1} by that of dS_t. A
/// gate of exactly 0 hides everything before it: its gradient is set to 0 and the sum restarts there, for all rows
/// where it is the whole of b_t, for all columns where it is the whole of a_t. The sums cancel: the terms' rounding,
/// about ε Σ_s |q_s dq_s|, stays in dlog a_t however small that is. The sum itself is compensated.
///
/// source   derived here; Mao 2022, Section 3.1, stores every state, O(Tk K V) memory, since a decay can't be undone
/// equals   gradients, up to rounding
/// cost     O(Tk K V) time, O(Tk (K+V) + KV) memory
template <typename Scalar>
BasicGradients<Scalar> gradients_without_stored_states(const BasicHead<Scalar>& head,
                                                       const Matrix<Scalar>& values_gradient,
                                                       const Matrix<Scalar>& state_gradient = {});

}  // namespace lethe::reference::decay_fast_weights
