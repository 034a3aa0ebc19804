#pragma once
// What the two delta rules share. Included by their .cpp files alone; their headers are the interface.
//
//   S̃_t = diag(a_t) S_{t−1}       δ_t = β_t (v_t − S̃_tᵀ k_t)       S_t = S̃_t + k_t δ_tᵀ       o_t = scale · S_tᵀ q_t
//
// `log_gate` is log a [T,K], a scalar gate included; 0×0 where nothing is forgotten.

#include <algorithm>
#include <vector>

#include "reference/fast_weights_input.hpp"
#include "reference/pair_decay.hpp"

namespace lethe::reference {

/// Which state a token reads: the one after its own write, as in the paper, or the one before, as in its authors' code.
enum class Read { kAfterTheWrite, kBeforeTheToken };

/// throws  std::invalid_argument where shapes don't match, or a strength is negative or NaN
template <typename Scalar>
void check_delta_rule(const BasicHead<Scalar>& head) {
  check_state_shapes(head);
  expect_size("write_strength", "entries, one a key", head.key.rows(), head.write_strength.size());
  if (!(head.write_strength.array() >= 0).all()) {
    throw std::invalid_argument("write_strength: expected values >= 0, found a negative one or NaN");
  }
}

/// S̃_t
template <typename Scalar>
Matrix<Scalar> faded(const Matrix<Scalar>& log_gate, const Matrix<Scalar>& state, Eigen::Index t) {
  if (log_gate.size() == 0) return state;
  return state.array().colwise() * gate_at(log_gate, t, state.rows()).transpose();
}

/// δ_t [1,V]
template <typename Scalar>
Matrix<Scalar> correction(const BasicHead<Scalar>& head, const Matrix<Scalar>& faded_state, Eigen::Index t) {
  return head.write_strength[t] * (head.value.row(t) - head.key.row(t) * faded_state);
}

/// One token at a time: fade, correct, write, read.
///
/// reads    head: as check_delta_rule has passed it; log_gate: ≤ 0
/// returns  values [Tq,V]; state [K,V] after the last key. Carried on as initial_state, it gives the same bits as one run
/// cost     O(Tk K V) time, O(KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> delta_rule_recurrent(const BasicHead<Scalar>& head, const Matrix<Scalar>& log_gate) {
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  // [recurrent]
  for (Eigen::Index t = 0, row = -position_of(head, 0); t < head.key.rows(); ++t, ++row) {
    output.state = faded(log_gate, output.state, t);
    output.state += head.key.row(t).transpose() * correction(head, output.state, t);
    if (row >= 0) output.values.row(row).noalias() = head.scale * head.query.row(row) * output.state;
  }
  // [/recurrent]
  return output;
}

/// A chunk at once. Written out, δ_t contains every earlier δ_s of the chunk; with P the decayed products of keys,
///
///   δ_t + β_t Σ_{s<t} P_ts δ_s = β_t (v_t − (a_{1…t} ⊙ k_t)·S_0)      that is      (I + strictlower(diag(β) P)) Δ = right side
///
/// which is a unit triangular system: one forward substitution solves it. The chunk then is an ordinary sum of writes k δᵀ.
///
/// reads    output.state: before the chunk; block: see decayed_products
/// returns  in output: the rows of values in the chunk, and the state after it
template <typename Scalar>
void delta_rule_advance(const BasicHead<Scalar>& head, const Matrix<Scalar>& log_gate, Eigen::Index start,
                        Eigen::Index length, Eigen::Index block, BasicOutput<Scalar>& output) {
  const Matrix<Scalar> key = head.key.middleRows(start, length);
  const PairDecay<Scalar> decay(log_gate.size() == 0 ? log_gate : Matrix<Scalar>(log_gate.middleRows(start, length)),
                                key.cols());
  const auto strength = head.write_strength.segment(start, length).asDiagonal();
  const Matrix<Scalar> system = strength * decayed_products(key, key, decay, 0, block);
  Matrix<Scalar> corrections =
      strength * (head.value.middleRows(start, length) - decayed_from_the_start(key, decay, 0) * output.state);
  system.template triangularView<Eigen::UnitLower>().solveInPlace(corrections);
  const QueryRows own = queries_in(head, start, length);
  const Matrix<Scalar> query = head.scale * head.query.middleRows(own.row, own.rows);
  output.values.middleRows(own.row, own.rows) = decayed_from_the_start(query, decay, own.first) * output.state +
                                                decayed_products(query, key, decay, own.first, block) * corrections;
  output.state.array().colwise() *= decay.between(length - 1, -1).transpose();
  output.state.noalias() += decayed_to_the_end(key, decay).transpose() * corrections;
}

/// delta_rule_advance from chunk to chunk, each read after the write; one chunk of all positions is the parallel form.
///
/// reads    head and log_gate as delta_rule_recurrent; chunk_length ≥ 1; block ≥ 1: see decayed_products
/// returns  as delta_rule_recurrent
/// cost     O(Tk (chunk_length (K+V) + KV)) time, O(chunk_length² + KV) extra memory
template <typename Scalar>
BasicOutput<Scalar> delta_rule_chunked(const BasicHead<Scalar>& head, const Matrix<Scalar>& log_gate,
                                       Eigen::Index chunk_length, Eigen::Index block) {
  BasicOutput<Scalar> output;
  output.values.resize(head.query.rows(), head.value.cols());
  output.state = state_or_zeros(head.initial_state, head);
  for (Eigen::Index start = 0; start < head.key.rows(); start += chunk_length) {
    delta_rule_advance(head, log_gate, start, std::min(chunk_length, head.key.rows() - start), block, output);
  }
  return output;
}

/// The recurrence backwards, from stored states. dS is ∂loss/∂S_t through the read of t and everything after it.
///
///   dq_t = scale · S_t do_t     dδ = dSᵀ k_t     dβ_t = dδ·(v_t − S̃ᵀ k_t)     dv_t = β_t dδ     dk_t = dS δ_t − S̃ dv_t
///   dS̃ = dS − k_t dv_tᵀ         dlog a_t = Σ_v S̃ ⊙ dS̃             dS_{t−1} = diag(a_t) dS̃
///
/// A read before the token takes S_{t−1} for S_t in dq_t and adds scale · q_t do_tᵀ to dS_{t−1} instead of dS_t.
///
/// returns  log_key_gate: of log_gate, empty where that is
template <typename Scalar>
BasicGradients<Scalar> delta_rule_gradients(const BasicHead<Scalar>& head, const Matrix<Scalar>& log_gate,
                                            const Matrix<Scalar>& values_gradient, const Matrix<Scalar>& state_gradient,
                                            Read read) {
  check_output_gradients(head, values_gradient, state_gradient);
  std::vector<Matrix<Scalar>> states{state_or_zeros(head.initial_state, head)};  // before each key, and after the last
  for (Eigen::Index t = 0; t < head.key.rows(); ++t) {
    const Matrix<Scalar> before = faded(log_gate, states[t], t);
    states.push_back(before + head.key.row(t).transpose() * correction(head, before, t));
  }
  BasicGradients<Scalar> gradients;
  gradients.query.resize(head.query.rows(), head.query.cols());
  gradients.key.resize(head.key.rows(), head.key.cols());
  gradients.value.resize(head.value.rows(), head.value.cols());
  gradients.write_strength.resize(head.key.rows());
  gradients.log_key_gate.resize(log_gate.rows(), log_gate.cols());
  Matrix<Scalar> carried = state_or_zeros(state_gradient, head);  // dS
  for (Eigen::Index t = head.key.rows() - 1, row = head.query.rows() - 1; t >= 0; --t, --row) {
    const auto read_state = [&](const Matrix<Scalar>& state) {
      if (row < 0) return;
      carried.noalias() += head.scale * head.query.row(row).transpose() * values_gradient.row(row);
      gradients.query.row(row).noalias() = head.scale * values_gradient.row(row) * state.transpose();
    };
    if (read == Read::kAfterTheWrite) read_state(states[t + 1]);
    const Matrix<Scalar> before = faded(log_gate, states[t], t);
    const Matrix<Scalar> missing = head.value.row(t) - head.key.row(t) * before;  // [1, V]
    const Matrix<Scalar> correction_gradient = head.key.row(t) * carried;         // [1, V]
    const Matrix<Scalar> value_gradient = head.write_strength[t] * correction_gradient;
    gradients.write_strength[t] = correction_gradient.cwiseProduct(missing).sum();
    gradients.value.row(t) = value_gradient;
    gradients.key.row(t).noalias() =
        head.write_strength[t] * missing * carried.transpose() - value_gradient * before.transpose();
    carried.noalias() -= head.key.row(t).transpose() * value_gradient;
    if (log_gate.size() > 0) gradients.log_key_gate.row(t) = before.cwiseProduct(carried).rowwise().sum();
    carried = faded(log_gate, carried, t);
    if (read == Read::kBeforeTheToken) read_state(states[t]);
  }
  gradients.initial_state = carried;
  return gradients;
}

}  // namespace lethe::reference
