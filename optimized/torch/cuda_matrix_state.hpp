#pragma once
// The matrix state by a CUDA kernel family, for arguments that were checked and that the family covers. Built with LETHE_CUDA only.

#include "optimized/operators/matrix_state.hpp"

namespace lethe {
struct MatrixStateFamily;  // optimized/cuda/matrix_state.hpp
}

namespace lethe::cuda {

/// lethe::gated_state and lethe::delta_state (matrix_state.hpp) on the current stream of the query's device.
MatrixStateOutputs matrix_state_forward(const MatrixStateFamily& family, const MatrixStateInputs& inputs);

/// The gradients of matrix_state_forward's values and state.
MatrixStateGradients matrix_state_backward(const MatrixStateFamily& family, const at::Tensor& grad_values,
                                           const at::Tensor& grad_state, const MatrixStateInputs& inputs);

}  // namespace lethe::cuda
