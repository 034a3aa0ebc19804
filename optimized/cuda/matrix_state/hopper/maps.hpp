#pragma once
// Tensor maps of a call's tensors, in tiles of 64 tokens and 64 columns.

#include "optimized/cuda/hopper/tensor_map.hpp"
#include "optimized/cuda/matrix_state.hpp"
#include "optimized/cuda/matrix_state/sweep.hpp"

namespace lethe::matrix_state {

struct Maps {
  const MatrixStateInput& in;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;

  CUtensorMap operator()(Operand operand, int64_t dim, int tokens = kChunk) const {
    const int64_t heads = operand.head_stride ? in.shape.heads : 1;
    if (operand.head_stride == 0) operand.head_stride = operand.token_stride;  // the copy engine has no stride of 0
    return tensor_map(operand, in.dtype, in.shape.batch, in.shape.key_length, heads, dim, tokens, promotion);
  }
  /// Of a result [B, T, H, dim] contiguous, in the rows of a warp.
  CUtensorMap of_result(void* result, int64_t dim, int tokens = kChunk / kWarps) const {
    const int64_t token = in.shape.heads * dim;
    return (*this)({result, in.shape.key_length * token, token, dim}, dim, tokens);
  }
};

}  // namespace lethe::matrix_state
