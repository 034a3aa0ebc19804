#pragma once
// The Hopper family: bfloat16 and float16 at head dims up to 256 on compute capability 9.0.

#include "optimized/cuda/attention.hpp"

namespace lethe::hopper {

/// Bytes of workspace that forward and backward ask for, multiples of 256. A backward's: about 4.125·D + 65 a query and head, D 64, 128 or 256.
size_t forward_workspace_bytes(const Shape& shape);
size_t backward_workspace_bytes(const Shape& shape);

/// AttentionFamily::query_sums.
const float* query_sums(const Shape& shape, void* workspace);

/// AttentionFamily::forward.
///
/// numerics  products of 16-bit operands summed in float; weights rounded to 16 bits before they are multiplied by `value`. The error of
///           log_normalizer is about 2⁻²³ of the sum of log f over the blocks of 128 tokens that a tile's queries stand in. None of these is
///           strong: tiles with queries in a strong block are computed by a second launch, with prefixes in two floats
void forward(const ForwardArguments& arguments);

/// The gate's kernels that a forward launches before its main kernel, alone: to be timed.
void forward_gate_alone(const ForwardArguments& arguments);

/// AttentionFamily::backward. May be put on the stream right after what wrote its inputs: it waits for that itself.
///
/// numerics  P and dS rounded to 16 bits before they are multiplied: in float16 what is below 2⁻²⁵ is lost, so a loss wants scaling
///           there. P has log_normalizer's error as a factor. dO_i·o_i in float, of values + residual. The row and column
///           sums of the gate's gradient are both of the same rounded dS, or with `float_sums`, and above head dim 128, of the same dS in float; a row's
///           sum, 0 in exact arithmetic, is subtracted from the row's keys (gate/gradient.cuh). Of float sums 64 rows share one, and
///           each has the mean, unless log f sum to −1 or less in a block of 128 tokens that their tile has queries in, or in the one before,
///           or there is a cut (gate/row_groups.cuh). The suffix sum is in double. dq is summed in float over key tiles: in any order, or
///           with `deterministic` in one fixed order
void backward(const BackwardArguments& arguments);

}  // namespace lethe::hopper
