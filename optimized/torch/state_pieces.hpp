#pragma once
// Calls of the matrix state by pieces of their rows and columns, for kernels that don't cover the whole.

#include <functional>
#include <tuple>

#include "optimized/coverage.hpp"
#include "optimized/operators/matrix_state.hpp"

namespace lethe {

/// The pieces (coverage.hpp) in which a call runs on its tensors' device, under autocast in autocast's dtype: one on other devices than GPUs.
///
/// cost  reads sizes alone. Of symbolic ones K, V, and where pieces depend on it whether T ≥ 16, become constants
StatePieces pieces_of(const MatrixStateInputs& inputs);

/// The values and the last state of a call whose pieces `run` computes: columns of values and state side by side; values the sum over the pieces of
/// rows, which are rounded to the dtype before they are added. Differentiable as `run` is. Gradients of q, k, key gates and β are sums over the pieces
/// of columns, those of v, value gates and gates a token over the pieces of rows: each term is rounded to its dtype before.
///
/// reads   pieces of rows only of calls without beta and normalize; under autocast any dtypes, as the public operators
/// throws  c10::Error for arguments that check_arguments refuses
/// cost    that of the pieces, and copies of values and states
std::tuple<at::Tensor, at::Tensor> in_pieces(
    const StatePieces& pieces, const MatrixStateInputs& inputs,
    const std::function<std::tuple<at::Tensor, at::Tensor>(const MatrixStateInputs&)>& run);

}  // namespace lethe
