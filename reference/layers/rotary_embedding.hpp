#pragma once
// RoPE: positions as rotations of queries and keys.

#include "reference/head.hpp"

namespace lethe::reference::layers {

/// Rotary position embedding of each head's part of each row. Dimension i of a head's first half and dimension i of its
/// second half are a plane, which turns with the position:
///
///   φ = (p + t) · base^(−2i/D)
///   y_i       = x_i cos φ − x_{i+D/2} sin φ
///   y_{i+D/2} = x_i sin φ + x_{i+D/2} cos φ,   0 ≤ i < D/2
///
/// so that the product of a rotated query and a rotated key depends on the difference of their positions alone.
///
/// source   Su et al. 2021, in the pairing by halves; the angles are taken in double for either Scalar
/// reduces  position 0 → the identity
/// reads    rows [T, heads · D], D even; base > 0; first_position p of row 0
/// returns  [T, heads · D]
/// throws   std::invalid_argument where heads doesn't divide the width or D is odd
/// cost     O(T · heads · D)
template <typename Scalar>
Matrix<Scalar> rotary_embedding(const Matrix<Scalar>& rows, Eigen::Index heads, double base,
                                Eigen::Index first_position = 0);

}  // namespace lethe::reference::layers
