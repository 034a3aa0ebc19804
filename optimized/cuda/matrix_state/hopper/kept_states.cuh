#pragma once
// The states before each chunk, rounded to 16 bits as the forward reads them: left by the forward where a backward follows, and read there (KeptStates).

#include "optimized/cuda/matrix_state/hopper/arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// A warp of the forward, whose 16 rows of chunk n's S are in shared memory: they leave from there.
template <typename Call>
__device__ __forceinline__ void leave_state(const Call& call, int buffer, int n, int block) {
  constexpr int kBlocks = Call::Shared::kStateWarps / kWarps;
  const KeptStates& to = call.p.kept;
  if (!to.wanted || call.lane > 0) return;
  const int rows = ((call.piece.begin * call.order.each + n) * kBlocks + block) * kWarps + call.warp;
  ptx::store_tile(&to.states, call.rounded_state(buffer) + block * kPanel + call.warp * (kPanel / kWarps), 0, call.h,
                  16 * rows, call.b);
  ptx::bulk_commit();
}

/// A warp of the forward, before it rounds S: its rows of the last but one have left that buffer.
template <typename Call>
__device__ __forceinline__ void wait_until_state_left(const Call& call) {
  if (!call.p.kept.wanted) return;
  if (call.lane == 0) ptx::bulk_wait_read<1>();
  __syncwarp();
}

/// A warp of the backward: S of every chunk.
template <typename Call>
__device__ __forceinline__ void load_kept_states(const Call& call) {
  using Shared = typename Call::Shared;
  constexpr int kBlocks = Call::kBlocks;
  const KeptStates& from = call.p.kept;
  auto& small = call.small();
  call.each_chunk([&](const auto& chunk) {
    ptx::mbarrier_wait(&small.state_empty[chunk.slot], chunk.parity ^ 1);
    if (call.lane > 0) return;
    uint64_t* const full = &small.state_full[chunk.slot];
    const int of_head = static_cast<int>(chunk.first / kChunk) * kBlocks;
    ptx::mbarrier_arrive_expect(full, Shared::kState);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      ptx::load_tile(call.state(chunk.slot) + block * kPanel, &from.states, full, 0, call.h, (of_head + block) * 64,
                     call.b);
  });
}

}  // namespace lethe::matrix_state
