#pragma once
// The operands that a warpgroup of the main backward kernel multiplies from shared memory.

#include "optimized/cuda/hopper/backward_shared.cuh"
#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe::hopper::backward_pass {

/// Descriptors of the operands: those of a key tile, and of the first stage those of a step, from which the second's are computed.
template <int kDim>
struct BackwardOperands {
  using Shared = BackwardShared<kDim>;
  static constexpr int kPanels = Shared::kPanels;
  static constexpr int kStageBytes = sizeof(Shared::query[0]);
  // The second stage's queries lie further on, and so nearer to the ones by as much.
  static constexpr int kQueryColumnsStride = kPanels == 1 ? kStageBytes - (kStageBytes << 16) : kStageBytes;

  uint64_t key_rows;     // A of Sᵀ, a warpgroup's own 64 keys
  uint64_t value_rows;   // A of dPᵀ, the same
  uint64_t key_columns;  // B of dQ: 64 columns of K and the ones
  uint64_t first_query_rows, first_output_rows, first_output_columns, first_query_columns;  // B of Sᵀ, dPᵀ, dV, dK
  uint64_t first_score_rows;  // A of dQ: at D = 64 a warpgroup's own 64 of 128 queries, at D = 128 all 64
  uint64_t first_row_bias, first_delta, bias_ones;

  __device__ __forceinline__ BackwardOperands(const Shared& shared, int warpgroup) {
    const auto of_warpgroup = [&](const uint8_t* rows) {
      return ptx::advance<64 * 128>(ptx::operand_descriptor(rows, 0), warpgroup);
    };
    key_rows = ptx::pin_uniform(of_warpgroup(shared.key[0]));
    value_rows = of_warpgroup(shared.value[0]);
    const uint8_t* key_panel = shared.key[kPanels == 1 ? 0 : warpgroup];
    key_columns = ptx::operand_descriptor(key_panel, shared.ones - key_panel);
    first_query_rows = ptx::operand_descriptor(shared.query[0][0], 0);
    first_output_rows = ptx::operand_descriptor(shared.grad_output[0][0], 0);
    first_output_columns = ptx::operand_descriptor(shared.grad_output[0][0], Shared::kQueryPanelBytes);
    first_query_columns = ptx::operand_descriptor(
        shared.query[0][0], kPanels == 1 ? uint32_t(shared.ones - shared.query[0][0]) : Shared::kQueryPanelBytes);
    first_score_rows =
        kPanels == 1 ? of_warpgroup(shared.grad_score[0][0]) : ptx::operand_descriptor(shared.grad_score[0][0], 0);
    first_row_bias = bias_operand(shared.row_bias[0]);
    first_delta = bias_operand(shared.negative_delta[0]);
    bias_ones = ones_operand(shared.bias_ones);
  }

  __device__ __forceinline__ uint64_t query_rows(int stage) const {
    return ptx::advance<sizeof(Shared::query[0])>(first_query_rows, stage);
  }
  __device__ __forceinline__ uint64_t query_columns(int stage) const {
    return ptx::advance<kQueryColumnsStride>(first_query_columns, stage);
  }
  __device__ __forceinline__ uint64_t output_rows(int stage) const {
    return ptx::advance<sizeof(Shared::grad_output[0])>(first_output_rows, stage);
  }
  __device__ __forceinline__ uint64_t output_columns(int stage) const {
    return ptx::advance<sizeof(Shared::grad_output[0])>(first_output_columns, stage);
  }
  __device__ __forceinline__ uint64_t score_rows(int stage) const {
    return ptx::advance<sizeof(Shared::grad_score[0])>(first_score_rows, stage);
  }
  __device__ __forceinline__ uint64_t row_bias(int stage) const {
    return ptx::advance<sizeof(Shared::row_bias[0])>(first_row_bias, stage);
  }
  __device__ __forceinline__ uint64_t delta(int stage) const {
    return ptx::advance<sizeof(Shared::negative_delta[0])>(first_delta, stage);
  }
};

}  // namespace lethe::hopper::backward_pass
