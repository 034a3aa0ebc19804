#pragma once
// The states before each chunk, rounded to 16 bits as the forward reads them: left by the forward where a backward follows, and read there
// (KeptStates).

#include "optimized/cuda/hopper/ptx/elect.cuh"
#include "optimized/cuda/matrix_state/hopper/arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/normalizer.cuh"

namespace lethe::matrix_state {

/// A warp of the forward, whose 16 rows of chunk n's S are in shared memory: they leave from there. z(half): a lane's rows of the normaliser's
/// column.
template <typename Call, typename Column>
__device__ __forceinline__ void leave_state(const Call& call, int buffer, int n, int block, float inverse_unit,
                                            Column&& z) {
  constexpr int kBlocks = Call::Shared::kStateWarps / kWarps;
  const KeptStates& to = call.p.kept;
  if (!to.wanted || (!Call::kNormalized && call.lane > 0)) return;
  int rows = ((call.piece.begin * call.order.each + n) * kBlocks + block) * kWarps + call.warp;
  if constexpr (!Call::kNormalized) rows += call.tile * call.order.chunks * (kBlocks * kWarps);
  if constexpr (Call::kNormalized) {
    float* const column = to.columns + call.head * to.stride + 16 * rows;
    if (call.lane % 4 == 0) column[call.lane / 4] = z(0), column[call.lane / 4 + 8] = z(1);
    if (call.lane > 0) return;
  }
  ptx::store_tile(&to.states, call.rounded_state(buffer) + block * kPanel + call.warp * (kPanel / kWarps), 0, call.h,
                  16 * rows, call.b);
  ptx::bulk_commit();
  if constexpr (Call::kHalf) to.units[call.head * to.stride + rows] = reciprocal_of_power(inverse_unit);
}

/// A warp of the forward, before it rounds S: its rows of the last but one have left that buffer.
template <typename Call>
__device__ __forceinline__ void wait_until_state_left(const Call& call) {
  if (!call.p.kept.wanted) return;
  if (call.lane == 0) ptx::bulk_wait_read<1>();
  __syncwarp();
}

/// A warp of the backward: S of every chunk. What warps read of it by loads, units and z, comes by stores of this warp: an arrival at state_empty
/// orders loads before these, not before what the copy engine writes.
template <typename Call>
__device__ __forceinline__ void load_kept_states(const Call& call) {
  using Shared = typename Call::Shared;
  constexpr int kBlocks = Call::kBlocks;
  constexpr bool kHalf = Call::kHalf, kNormalized = Call::kNormalized;
  const KeptStates& from = call.p.kept;
  auto& small = call.small();
  call.each_chunk([&](const auto& chunk) {
    const int of_head = (static_cast<int>(chunk.first / kChunk) + call.column_tile() * call.order.chunks) * kBlocks;
    [[maybe_unused]] float2 column[kBlocks];
    [[maybe_unused]] float unit = 0.0f;
    if constexpr (kNormalized) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        column[block] = *reinterpret_cast<const float2*>(from.columns + call.head * from.stride +
                                                         (of_head + block) * 64 + 2 * call.lane);
    }
    if constexpr (kHalf) {
      if (call.lane < kBlocks * kWarps) unit = from.units[call.head * from.stride + of_head * kWarps + call.lane];
    }
    ptx::mbarrier_wait(&small.state_empty[chunk.slot], chunk.parity ^ 1);
    uint64_t* const full = &small.state_full[chunk.slot];
    if (Call::kDivides ? ptx::elect() : call.lane == 0) {
      ptx::mbarrier_arrive_expect(full, Shared::kState);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        ptx::load_tile(call.state(chunk.slot) + block * kPanel, &from.states, full, 0, call.h, (of_head + block) * 64,
                       call.b);
    }
    if constexpr (kNormalized) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block)
        *reinterpret_cast<float2*>(&call.columns().states[chunk.slot][64 * block + 2 * call.lane]) = column[block];
      if constexpr (Call::kOuterInProducts) {
        using Element = typename Call::Element;
        store_outer<Element>(call.divided().states[chunk.slot], 2 * call.lane, column[0].x);
        store_outer<Element>(call.divided().states[chunk.slot], 2 * call.lane + 1, column[0].y);
        ptx::fence_async_shared();
      }
    }
    if constexpr (kHalf) {
      if (call.lane < kBlocks * kWarps) small.state_units[chunk.slot][call.lane] = unit;
    }
    if constexpr (kHalf || kNormalized) arrive_warp(full, call.lane);
  });
}

}  // namespace lethe::matrix_state
