#pragma once
// The family of every GPU from compute capability 8.0 on: bfloat16 and float16 by mma.sync at head dims up to 256, float32 by float arithmetic up
// to 128.

#include "optimized/cuda/attention.hpp"

namespace lethe::ampere {

// Rows of arguments are whole chunks of 16 bytes; a caller pads others with zeros.

/// Bytes of workspace that forward and backward ask for, multiples of 256. A backward's: about 65 a query and head, and dq's float sums.
size_t forward_workspace_bytes(const Shape& shape);
size_t backward_workspace_bytes(const Shape& shape);

/// AttentionFamily::forward.
///
/// numerics  products of 16-bit operands summed in float; weights rounded to 16 bits before they are multiplied by `value`; floats are multiplied and
///           added as floats, never in fewer bits. The error of
///           log_normalizer is about 2⁻²³ of the sum of log f over the blocks of 128 tokens that a tile's queries stand in. Near strong blocks
///           c_i − c_j is added to each logit from prefixes in two floats
void forward(const ForwardArguments& arguments);

/// AttentionFamily::backward. Each gradient is summed in one fixed order with `deterministic`, in float32, at head dims up to 32, and at those above
/// 96 where a CTA may not have bytes_of_wide().least of shared memory (backward.hpp). Else key tiles add to dq and to the gate's row sums in any
/// order.
///
/// numerics  P and dS rounded to 16 bits before they are multiplied: in float16 what is below 2⁻²⁵ is lost, so a loss wants scaling
///           there. P has log_normalizer's error as a factor. dO_i·o_i in float, of values + residual. The row and column sums of the
///           gate's gradient are of dS in float, whatever `float_sums`; a row's sum, 0 in exact arithmetic, is subtracted from the row's
///           keys (gate/gradient.cuh). The suffix sum is in double
/// cost      10·D flops a visited pair; in one fixed order 14·D: S and dP are computed for keys and again for queries (at head dims above 128 S
///           twice for keys). Workspace of 4·D bytes a query and head for the float sums of dq
void backward(const BackwardArguments& arguments);

}  // namespace lethe::ampere
