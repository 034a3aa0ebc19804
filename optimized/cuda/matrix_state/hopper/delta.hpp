#pragma once
// delta_state by wgmma, for a state of at most 128 rows: no gate or one a token, 16-bit inputs, on compute capability 9.0 (delta_forward.cu).

#include "optimized/cuda/matrix_state.hpp"
#include "optimized/cuda/matrix_state/delta.hpp"

namespace lethe::matrix_state {

/// All chunks are solved at once, a warp each; then a CTA sweeps a head and 64 columns of its state, or 128 of one of more than 64 rows. The bits of a head
/// don't depend on the number of heads, nor those of a token on later ones. Products of float16 operands times powers of two, sums in float. Where
/// `kept_states` are wanted the sweep leaves what the next call does, with the same bits.
void delta_forward_by_warpgroups(const MatrixStateForward& arguments);
/// The same without queries: the states, residuals and inverses of `arrays` for a backward without those of its forward.
void delta_states_by_warpgroups(const MatrixStateInput& in, const DeltaArrays& arrays, void* workspace,
                                cudaStream_t stream);
/// The gradients from the last token back, of value and initial state, from what a call for the states has left in `arrays` and `workspace`: a CTA sweeps
/// as in the forward. To be called next after that one, whose sweep is not waited for: no state is read. Or alone, where the forward has left `arrays`.
void delta_reverse_by_warpgroups(const MatrixStateBackward& arguments, const DeltaArrays& arrays, void* workspace);
/// The gradients inside all chunks, from arrays that the states and the reverse sweep have written, each chunk's when that has swept it and the head's states
/// are written: of query, key, gate and strength. To be called next after the reverse sweep, which is not waited for.
void delta_gradients_by_warpgroups(const MatrixStateBackward& arguments, const DeltaArrays& arrays);
/// Bytes of the workspace of each.
size_t delta_warpgroup_workspace_bytes(const Shape& shape);

}  // namespace lethe::matrix_state
