#pragma once
// The attention layer of the papers' models, FoX (Pro) and everything that its ablations leave out.

#include <optional>

#include "reference/head.hpp"

namespace lethe::reference::layers {

/// The weights of one layer of W columns and H heads. Matrices are [out, in]: W_q x is `query · x`; head h owns rows
/// h·W/H … (h+1)·W/H − 1. A component whose weights are absent is left out of the layer.
template <typename Scalar>
struct ForgettingLayerWeights {
  Matrix<Scalar> query, key, value, output;                  ///< [W, W]
  std::optional<Matrix<Scalar>> key_shift{}, value_shift{};  ///< [H, W]; absent: no shift
  std::optional<Vector<Scalar>> query_norm{}, key_norm{};    ///< [W], or [W/H] shared by the heads; absent: no norm
  std::optional<Matrix<Scalar>> forget{};                    ///< [H, W]; absent: a gate that the data cannot change
  std::optional<Vector<Scalar>> forget_bias{};               ///< [H]; absent, as `forget` is: no gate, f = 1
  std::optional<Vector<Scalar>> output_norm{};               ///< [W]; absent: no norm
  std::optional<Matrix<Scalar>> output_gate{};               ///< [W, W]; absent: no gate
};

/// What the weights do not define.
struct ForgettingLayerShape {
  Eigen::Index heads = 1;
  std::optional<double> rope_base{};  ///< absent: no RoPE
};

inline constexpr double kNormEpsilon = 1e-6;    ///< of every norm but the next
inline constexpr double kQkNormEpsilon = 1e-5;  ///< of query and key norm

/// The FoX (Pro) layer. For each head, D = W/H:
///
///   q_t = RoPE( RMSNorm(W_q x_t) )
///   k_t = RoPE( RMSNorm(shift(W_k x_t)) ),  v_t = shift(W_v x_t)
///   shift(u_t) = α_t u_{t−1} + (1 − α_t) u_t,  α_t = σ(w·x_t),  u_{−1} = 0
///   log f_t = log σ(w_f·x_t + b_f)
///   o_i = Σ_{j ≤ i} softmax_j( q_i·k_j / √D + Σ_{j < l ≤ i} log f_l ) v_j
///   y_i = W_o( RMSNorm(o_i) ⊙ σ(W_g x_i) ),  RMSNorm a head at a time
///
/// source   Forgetting Transformer, Eq. 16–24, with three differences that follow the authors' published models: the
///          output gate is σ(W_g x), where Eq. 22 has no σ (Figure 1 does); the logits are divided by √D; and v takes
///          W_v, which Eq. 19 misprints as W_k
/// reduces  no optional weights → the attention of a Transformer without positions; forget_bias alone → ALiBi with the slope
///          −log σ(b)
/// reads    input x [T, W], already normed
/// returns  y [T, W], before the residual sum
/// throws   std::invalid_argument naming the weight, the expected and the found size
/// cost     O(T W² + T² W) time, O(T²) extra memory
template <typename Scalar>
Matrix<Scalar> forgetting_layer(const Matrix<Scalar>& input, const ForgettingLayerWeights<Scalar>& weights,
                                const ForgettingLayerShape& shape);

}  // namespace lethe::reference::layers
