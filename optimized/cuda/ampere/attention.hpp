#pragma once
// The family of mma.sync, ldmatrix and cp.async: bfloat16 and float16 at head dims up to 256 on compute capability 8.0 and above.

#include "optimized/cuda/attention.hpp"

namespace lethe::ampere {

// Head dims of arguments are multiples of 8; a caller pads others with zeros.

/// Bytes of workspace that forward and backward ask for, multiples of 256. A backward's: about 65 a query and head, and dq's float sums.
size_t forward_workspace_bytes(const Shape& shape);
size_t backward_workspace_bytes(const Shape& shape);

/// AttentionFamily::forward.
///
/// numerics  products of 16-bit operands summed in float; weights rounded to 16 bits before they are multiplied by `value`. The error of
///           log_normalizer is about 2⁻²³ of the sum of log f over the blocks of 128 tokens that a tile's queries stand in. Near strong blocks
///           c_i − c_j is added to each logit from prefixes in two floats
void forward(const ForwardArguments& arguments);

/// AttentionFamily::backward. With `deterministic`, and at head dims 32 and 256 always, each gradient is summed in one fixed order; else key tiles add to
/// dq and to the gate's row sums in any order.
///
/// numerics  P and dS rounded to 16 bits before they are multiplied: in float16 what is below 2⁻²⁵ is lost, so a loss wants scaling
///           there. P has log_normalizer's error as a factor. dO_i·o_i in float, of values + residual. The row and column sums of the
///           gate's gradient are of dS in float, whatever `float_sums`; a row's sum, 0 in exact arithmetic, is subtracted from the row's
///           keys (gate/gradient.cuh). The suffix sum is in double
/// cost      10·D flops a visited pair; in one fixed order 14·D: S and dP are computed for keys and again for queries (at head dims above 128 S twice
///           for keys). Workspace of 4·D bytes a query and head for the float sums of dq
void backward(const BackwardArguments& arguments);

}  // namespace lethe::ampere
