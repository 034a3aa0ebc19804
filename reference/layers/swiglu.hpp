#pragma once
// SwiGLU, the activation of the MLP.

#include "reference/head.hpp"

namespace lethe::reference::layers {

/// The second half of each row, gated by the first.
///
///   y = a · σ(a) ⊙ b,   (a, b) the halves of a row
///
/// source   Shazeer 2020
/// reads    gate_and_up [T, 2I], the gate a first
/// returns  [T, I]
/// throws   std::invalid_argument where the number of columns is odd
/// cost     O(T I)
template <typename Scalar>
Matrix<Scalar> swiglu(const Matrix<Scalar>& gate_and_up);

}  // namespace lethe::reference::layers
