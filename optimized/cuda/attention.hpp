#pragma once
// Forgetting Attention on CUDA: the arguments of a call, and the kernel families that run it (families.cpp). Raw device pointers, no Torch.
//
// Shapes: batch B, query_length Tq, key_length Tk, query_heads Hq, heads H (Hq a multiple of H), key_dim K, value_dim V, D either. Query i has
// position i + Tk − Tq. Everything below runs on the given stream, allocates nothing and never synchronises.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "optimized/coverage.hpp"
#include "optimized/cuda/gate/visibility.hpp"
#include "optimized/gate.hpp"
#include "reference/problem.hpp"

namespace lethe {

/// A tensor [B, T, H, D] whose last dimension is contiguous: base and strides multiples of 16 bytes, strides in elements.
struct Operand {
  const void* data;
  int64_t batch_stride, token_stride, head_stride;
};

/// The same for a tensor that a kernel writes.
struct MutableOperand {
  void* data;
  int64_t batch_stride, token_stride, head_stride;
};

/// The operand of Element with strides in 16-bit elements, of which a float has two.
template <typename Element>
Operand in_halves(const Operand& operand) {
  constexpr int64_t kHalves = sizeof(Element) / 2;
  return {operand.data, operand.batch_stride * kHalves, operand.token_stride * kHalves, operand.head_stride * kHalves};
}

/// log f [B, Tk, Hq], natural log, ≤ 0, by strides in elements.
struct Gates {
  const float* log_forget;
  int64_t batch_stride, token_stride, head_stride;
};

/// The arrays that a forward reads and writes.
struct ForwardArguments {
  Shape shape;
  Dtype dtype;
  double scale;
  Operand query, key, value;
  Gates gates;
  double log_pruning_tolerance;  ///< log ε ≤ 0; −inf prunes nothing
  const float* logit_bound;      ///< [B, Hq], U ≥ max |scale·q·k|; null: computed from the largest norms
  bool prune_by_mass = false;    ///< whether pruning bounds the sum of weights, not each by the largest
  int window = kNoWindow;        ///< ≥ 1, keys that a query sees at most, its own included
  void* values;                  ///< [B, Tq, Hq, V] contiguous
  void*
      residual;  ///< [B, Tq, Hq, V] contiguous, the rounding error of values, rounded itself; null: not wanted, or floats
  float* log_normalizer;     ///< [B, Tq, Hq] contiguous, natural log, D_ii = 0
  int64_t* visited_pairs;    ///< [B, Hq]: causal pairs inside the visited blocks, counted once a tile
  int32_t* first_key_block;  ///< [B, Hq, ⌈Tq/128⌉]: the pruning boundary, which the backward reads
  void* workspace;           ///< device, 256-byte aligned, forward_workspace_bytes(shape) long
  cudaStream_t stream;
};

/// The arrays that a backward reads and writes.
struct BackwardArguments {
  Shape shape;
  Dtype dtype;
  double scale;
  Operand query, key, value;
  Gates gates;
  int window = kNoWindow;                 ///< the forward's
  Operand values, residual, grad_values;  ///< the forward's (o = values + residual), and the gradient that arrives
  const float* delta =
      nullptr;  ///< [B, Tq, Hq] contiguous, Σ_d dO·(values + residual), which are then unread; null: computed
  const float* log_normalizer;     ///< [B, Tq, Hq] contiguous, as the forward left it
  const int32_t* first_key_block;  ///< [B, Hq, ⌈Tq/128⌉], the same
  MutableOperand grad_query, grad_key,
      grad_value;            ///< of `dtype`, apart from each other; grad_query unused unless finish_query
  float* grad_log_forget;    ///< [B, Tk, Hq] contiguous
  void* workspace;           ///< device, 256-byte aligned, backward_workspace_bytes(shape) long
  bool deterministic;        ///< dq is summed in one fixed order
  bool float_sums;           ///< the gate's gradient from sums of float dS, not (Hopper, to head dim 128) in 16 bits
  bool finish_query = true;  ///< false: dq / scale stays in the family's query_sums
  cudaStream_t stream;
};

/// Kernels for some GPUs, types and shapes: a row of the table in families.cpp.
///
///   forward    o_i = Σ_{i − window < j ≤ i} softmax_j(scale·q_i·k_j + c_i − c_j) v_j over the blocks within the pruning boundary
///   backward   P_ij = exp(scale·q_i·k_j + c_i − c_j − log_normalizer_i),  dP_ij = dO_i·v_j,  dS_ij = P_ij (dP_ij − dO_i·o_i)
///              dq_i = scale Σ_j dS_ij k_j,  dk_j = scale Σ_i dS_ij q_i,  dv_j = Σ_i P_ij dO_i
///              d log f_l = Σ_{t ≥ l} ( Σ_j dS_tj − Σ_i dS_it )
///
/// source   Forgetting Transformer, Eq. 11–13; FlashAttention-2, Algorithm 2; Adaptive Computation Pruning, Algorithm 1
/// throws   std::runtime_error for a CUDA error. A call must not be made where `unsupported` returns a reason
/// cost     4·D flops a visited pair forward, 10·D backward, of an instance's D, on the tensor cores; accumulation is stated with each family
struct AttentionFamily : Coverage {
  void (*forward)(const ForwardArguments& arguments);
  void (*backward)(const BackwardArguments& arguments);
  size_t (*forward_workspace_bytes)(const Shape& shape);
  size_t (*backward_workspace_bytes)(const Shape& shape);
  /// Where a backward without finish_query leaves dq / scale in its workspace, in slices (query_sums.hpp); null: it always finishes.
  const float* (*query_sums)(const Shape& shape, void* workspace);
};

/// The families in the order in which they are asked: that of kAttentionCoverage.
std::span<const AttentionFamily> attention_families();

/// Compute capability of a device, major·10 + minor, asked for once per device.
int compute_capability(int device);

}  // namespace lethe
