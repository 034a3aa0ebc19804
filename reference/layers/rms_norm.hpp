#pragma once
// RMSNorm, of a whole row or of every head's part of it.

#include "reference/head.hpp"

namespace lethe::reference::layers {

/// Root-mean-square normalisation of the `heads` equal parts of each row, every part by its own mean.
///
///   y_i = w_i · x_i / √( mean_j x_j² + ε ),   i, j in the same part
///
/// source   Zhang and Sennrich 2019; Forgetting Transformer, Eq. 16, 18 and 24
/// reduces  heads = 1 → normalisation of the whole row
/// reads    rows [T, W]; weight [W], or [W / heads] shared by the heads; epsilon > 0, which keeps a row of zeros at zero
/// returns  [T, W]
/// throws   std::invalid_argument where heads doesn't divide W or the weight has neither size
/// cost     O(T W)
template <typename Scalar>
Matrix<Scalar> rms_norm(const Matrix<Scalar>& rows, const Vector<Scalar>& weight, Eigen::Index heads, Scalar epsilon);

}  // namespace lethe::reference::layers
