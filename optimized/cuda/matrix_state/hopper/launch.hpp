#pragma once
// gated_state by wgmma, for a state of at most 128 rows, and its gradients, for one of at most 128 × 64, with a gate a token and no normaliser
// 128 × 128: no gate or one a token, 16-bit inputs, on compute capability 9.0 (chunked.cu).

#include "optimized/cuda/matrix_state.hpp"

namespace lethe::matrix_state {

/// Whether these kernels run a call of this shape, with a gate or without, on the current device. The number of heads decides nothing, so that the
/// bits of a head don't depend on it; nor does the length in the forward, where no token changes the bits of earlier ones.
bool forward_by_warpgroups(const Shape& shape);
bool backward_by_warpgroups(const Shape& shape, const MatrixStateForm& form);

/// A CTA sweeps a head, or where there are few of them a piece of one: the results are the same bits (segments.cuh).
void warpgroup_forward(const MatrixStateForward& arguments);
void warpgroup_backward(const MatrixStateBackward& arguments);
/// Bytes of their workspace on the current device: the number of pieces is that of its multiprocessors.
size_t warpgroup_forward_workspace_bytes(const Shape& shape, const MatrixStateForm& form);
size_t warpgroup_backward_workspace_bytes(const Shape& shape, const MatrixStateForm& form);

}  // namespace lethe::matrix_state
