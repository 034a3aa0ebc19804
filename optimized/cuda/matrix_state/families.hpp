#pragma once
// The kernel families of the matrix state, one a file.

#include "optimized/cuda/matrix_state.hpp"

namespace lethe::matrix_state {

/// chunked.cu: no gate or one a token, by tensor cores.
void chunk_forward(const MatrixStateForward& arguments);
void chunk_backward(const MatrixStateBackward& arguments);
bool chunk_normalizes(const Shape& shape, const MatrixStateForm& form, bool backward);
size_t chunk_forward_workspace_bytes(const Shape& shape, const MatrixStateForm& form);
size_t chunk_workspace_bytes(const Shape& shape, const MatrixStateForm& form);

/// vector_gates.cu: a gate a row, and perhaps one a column, by tensor cores.
void vector_forward(const MatrixStateForward& arguments);
/// The gradient of the value where columns have no gate, by a sweep in reverse: dv_j = Σ_{i ≥ j} (Σ_κ D_ijκ q_iκ k_jκ) dO_i. The next kernel may
/// begin beside it.
///
/// writes  states, marks  those of VectorSweepArguments, and `first` the gradient of the initial state; null: not wanted
void vector_sweep_back(const MatrixStateBackward& arguments, void* states, float* first, int32_t* marks);
/// vector_gradient.cu: the gradients.
void vector_backward(const MatrixStateBackward& arguments);
size_t vector_workspace_bytes(const Shape& shape, const MatrixStateForm& form);

/// delta_forward.cu, delta_backward.cu: the delta rule without a gate or with one a token, by tensor cores.
void delta_forward(const MatrixStateForward& arguments);
void delta_backward(const MatrixStateBackward& arguments);
size_t delta_forward_workspace_bytes(const Shape& shape, const MatrixStateForm& form);
size_t delta_workspace_bytes(const Shape& shape, const MatrixStateForm& form);

/// delta_keys.cu: the delta rule with a gate a row, by tensor cores.
void delta_key_forward(const MatrixStateForward& arguments);
void delta_key_backward(const MatrixStateBackward& arguments);
size_t delta_key_forward_workspace_bytes(const Shape& shape, const MatrixStateForm& form);
size_t delta_key_workspace_bytes(const Shape& shape, const MatrixStateForm& form);

/// scan.cu: everything, token by token in float.
void scan_forward(const MatrixStateForward& arguments);
void scan_backward(const MatrixStateBackward& arguments);
size_t scan_workspace_bytes(const Shape& shape, const MatrixStateForm& form);

}  // namespace lethe::matrix_state
