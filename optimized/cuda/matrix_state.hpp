#pragma once
// The matrix state operators on CUDA: the arguments of a call, and the kernel families that run it (matrix_state/families.cpp). Raw device pointers,
// no Torch.
//
// Shapes: batch B, key_length T, heads H, key_dim K, value_dim V. Everything below runs on the given stream, allocates nothing and never
// synchronises.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "optimized/coverage.hpp"
#include "optimized/cuda/attention.hpp"
#include "reference/problem.hpp"

namespace lethe {

/// A call's inputs. Tensors [B, T, H, ·] have a contiguous last dimension, base and strides are multiples of 16 bytes; gates are logarithms in float.
struct MatrixStateInput {
  Shape shape;
  Dtype dtype;
  MatrixStateForm
      form;  ///< `normalize`, of a family that says so alone: values over z·q; states have a column more, the last, which is z
  double scale;
  Operand query, key, value;
  Operand key_gate;            ///< [B, T, H] or, by the form, [B, T, H, K]; null data where the form has none
  Operand value_gate;          ///< [B, T, H, V]; the same
  Gates beta;                  ///< [B, T, H]; the same
  const float* initial_state;  ///< [B, H, K, V] contiguous; null: zeros
};

/// What a forward writes. See optimized/torch/matrix_state.hpp for the equations.
struct MatrixStateForward : MatrixStateInput {
  void* values;  ///< [B, T, H, V] contiguous, of `dtype`, or float where `float_values`
  bool float_values;
  float* last_state;  ///< [B, H, K, V] contiguous
  void* workspace;    ///< device, 256-byte aligned, forward_workspace_bytes long; null where that is 0
  /// For the backward, where keeps_states_at(scale): device, 256-byte aligned, [B, H, kept_state_bytes]; null: not wanted.
  void* kept_states;
  cudaStream_t stream;
};

/// What a backward reads besides, and writes: all contiguous, in the shape of what they are the gradients of; null where the form has none.
struct MatrixStateBackward : MatrixStateInput {
  Operand grad_values;                       ///< of `dtype`
  const float* grad_last_state;              ///< [B, H, K, V] contiguous; null: zeros
  void *grad_query, *grad_key, *grad_value;  ///< of `dtype`
  float *grad_key_gate, *grad_value_gate, *grad_beta;
  float* grad_initial_state;  ///< null: not wanted
  const void* kept_states;    ///< what the forward left, where form.kept_states; else null
  void* workspace;            ///< device, 256-byte aligned, backward_workspace_bytes long
  cudaStream_t stream;
};

/// Kernels for some GPUs, types, shapes and forms of the call: a row of the table in matrix_state/families.cpp.
///
/// source   Mao 2022, Eq. 3 and 5, transposed; Forgetting Transformer, Eq. 7–10
/// throws   std::runtime_error for a CUDA error. A call must not be made where `unsupported` returns a reason
struct MatrixStateFamily : MatrixStateCoverage {
  void (*forward)(const MatrixStateForward& arguments);
  void (*backward)(const MatrixStateBackward& arguments);
  size_t (*forward_workspace_bytes)(const Shape& shape, const MatrixStateForm& form);
  size_t (*backward_workspace_bytes)(const Shape& shape, const MatrixStateForm& form);
  /// Whether a call without columns of ones may have `normalize` in its form, of which these kernels compute the normaliser apart.
  bool (*normalizes)(const Shape& shape, const MatrixStateForm& form, bool backward);
};

/// The families in the order in which they are asked: that of kMatrixStateCoverage.
std::span<const MatrixStateFamily> matrix_state_families();

}  // namespace lethe
