#pragma once
// The delta rule with gates, the most general member of its family.

#include "reference/head.hpp"

/// Fast weights that forget and overwrite: the state fades, then the delta rule corrects what is left of it.
///
///   S̃_t = f_t diag(a_t) S_{t−1}     δ_t = β_t (v_t − S̃_tᵀ k_t)     S_t = S̃_t + k_t δ_tᵀ     o_t = scale · S_tᵀ q_t
///
/// The order matters: the correction sees what the gates have left, so that after a write with β_t |k_t|² = 1 the key returns
/// its value exactly.
///
/// source   Yang 2024, "Gated Delta Networks", for the scalar gate; Kimi Delta Attention (2025) for the one of each row
/// reduces  f ≡ a ≡ 1 → delta_fast_weights
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; write_strength [Tk] = β ≥ 0; log_forget [Tk] = log f and log_key_gate
///          [Tk,K] = log a, natural logs, ≤ 0, −∞ forgets all, empty forgets nothing; initial_state [K,V], empty is zeros.
///          Tq ≤ Tk, query row i is at position Tk − Tq + i
/// throws   std::invalid_argument naming the input, the expected and the found shape or value
/// rounds   everything in Scalar. Corrections build on each other: while β_t |k_t|² ≤ 2 an error never grows; beyond, errors
///          and state grow alike
namespace lethe::reference::gated_delta_fast_weights {

/// One token at a time: gates, write, read.
///
/// returns  values [Tq,V]; state [K,V] after the last key. Carried on as initial_state, it gives the same bits as one run
/// cost     O(Tk K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head);

/// All tokens at once, as delta_fast_weights with the decay f_{s+1…t} a_{s+1…t} inside every product of position t with
/// position s; S_0 is before position 0.
///
/// returns  as recurrent
/// cost     O(Tk² (K+V)) time, O(Tk²) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head);

/// The same in chunks, from state to state. No exponent is positive: gates from exactly 0 to exactly 1 are safe.
///
/// reads    chunk_length ≥ 1
/// returns  as recurrent
/// cost     O(Tk (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Eigen::Index chunk_length);

/// ∂loss/∂input of every input: those of delta_fast_weights with S̃_t for S_{t−1}, and
///
///   dS̃ = dS − k_t dv_tᵀ     dlog a_t = Σ_v S̃_t ⊙ dS̃     dlog f_t = Σ_k dlog a_t     dS_{t−1} = f_t diag(a_t) dS̃
///
/// reads    values_gradient [Tq,V]; state_gradient [K,V], empty is zeros
/// returns  query, key, value, write_strength, initial_state, and of each gate that the head has
/// cost     O(Tk K V) time and memory: every state is kept
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& values_gradient,
                                 const Matrix<Scalar>& state_gradient = {});

}  // namespace lethe::reference::gated_delta_fast_weights
