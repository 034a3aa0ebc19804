#pragma once
// KV-shift: keys and values mix in the token before, by a share that the data choose.

#include "reference/head.hpp"

namespace lethe::reference::layers {

/// Each head's part of a token mixed with the same part of the token before it.
///
///   y_t = α_t u_{t−1} + (1 − α_t) u_t,   one α a token and head
///
/// To continue a sequence only the last unmixed u is needed, before any norm.
///
/// source   Forgetting Transformer, Eq. 17–20, which set u_{−1} = 0 silently
/// reduces  α ≡ 0 → the identity
/// reads    projected u [T, W]; mix α [T, H] in [0, 1], H divides W; previous u_{−1} [W], zero where a sequence begins
/// returns  [T, W]
/// throws   std::invalid_argument naming the input, the expected and the found shape
/// cost     O(T W)
template <typename Scalar>
Matrix<Scalar> kv_shift(const Matrix<Scalar>& projected, const Matrix<Scalar>& mix, const Vector<Scalar>& previous);

}  // namespace lethe::reference::layers
