#pragma once
// Linear attention with one forget gate a token: the recurrent counterpart of Forgetting Attention.

#include "reference/linear_attention.hpp"

/// Linear attention with a forget gate: before a token is written, the whole state fades by one factor.
///
///   S_t = f_t S_{t−1} + k_t v_tᵀ,   z_t = f_t z_{t−1} + k_t
///   o_t = scale · S_tᵀ q_t                       (Normalized::kNo)
///   o_t = S_tᵀ q_t / z_t·q_t                     (Normalized::kYes: any scale cancels)
///
/// In parallel, F_ij = Π_{j < l ≤ i} f_l multiplies the product q_i·k_j. Query and key are features here.
///
/// source   Forgetting Transformer, Eq. 7–9 (recurrent) and 10 (parallel; the lower limit of its product is j + 1).
///          Without the normalizer it is Mamba-2's recurrence, "simple GLA"
/// reduces  log f ≡ 0 → linear_attention; features with φ(q)·φ(k) = exp(scale · q·k) → forgetting_attention
/// reads    query [Tq,K], key [Tk,K], value [Tk,V]; log_forget [Tk], natural log, ≤ 0, −∞ clears the state; initial_state
///          [K,V] or empty; where normalized initial_normalizer [K] or empty. Tq ≤ Tk, Tk ≥ 1, query row i is at
///          position Tk − Tq + i
/// returns  values [Tq,V]; state [K,V]; normalizer [K] where normalized
/// throws   std::invalid_argument naming the input, the expected and the found shape or value; normalized also where a
///          query's z·q is zero
/// rounds   everything in Scalar; no exponent is above zero, and no gate is divided by
namespace lethe::reference::gated_linear_attention {

/// One token at a time: gate, write, read.
///
/// cost     O(T K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> recurrent(const BasicHead<Scalar>& head, Normalized normalized);

/// All tokens at once: (F ∘ Q Kᵀ) V + the initial state, faded. Only sums of log gates are exponentiated, none above zero.
///
/// cost     O(Tq Tk (K+V)) time, O(Tq Tk) extra memory
template <typename Scalar>
BasicOutput<Scalar> parallel(const BasicHead<Scalar>& head, Normalized normalized);

/// The parallel form inside chunks of chunk_length ≥ 1 positions, the state between them.
///
/// cost     O(T (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> chunked(const BasicHead<Scalar>& head, Normalized normalized, Eigen::Index chunk_length);

/// ∂loss/∂(query, key, value, log_forget, initial_state, and where normalized initial_normalizer), by one scan forward
/// and one backward.
///
///   dS_t = scale · q_t do_tᵀ + f_{t+1} dS_{t+1},     dq_t = scale · S_t do_t,  dk_t = dS_t v_t,  dv_t = dS_tᵀ k_t
///   dlog f_t = f_t ⟨dS_t, S_{t−1}⟩,                  dS_0 = f_1 dS_1
///
/// A normalizer is one more column of the state, whose values are one: with n = S_tᵀ q_t and d = z_t·q_t the gradient of
/// o = n / d is do / d for n, and −do·o / d for d.
///
/// reads    ∂loss/∂values [Tq,V], ∂loss/∂state [K,V], ∂loss/∂normalizer [K]; the last two may be empty, which is zeros
/// cost     O(T K V) time and memory: each state is kept, so that no gate has to be divided by
template <typename Scalar>
BasicGradients<Scalar> gradients(const BasicHead<Scalar>& head, Normalized normalized,
                                 const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient = {},
                                 const Vector<Scalar>& normalizer_gradient = {});

}  // namespace lethe::reference::gated_linear_attention
