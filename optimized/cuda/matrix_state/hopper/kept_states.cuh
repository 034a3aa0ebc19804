#pragma once
// The states before each chunk, rounded to 16 bits as the forward reads them: left by the forward where a backward follows, and read there (KeptStates).

#include "optimized/cuda/matrix_state/hopper/arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/normalizer.cuh"

namespace lethe::matrix_state {

/// A warp of the forward, whose 16 rows of chunk n's S are in shared memory: they leave from there. z: a lane's rows of the normaliser's column.
template <typename Call>
__device__ __forceinline__ void leave_state(const Call& call, int buffer, int n, int block, float inverse_unit,
                                            const float (&z)[2]) {
  constexpr int kBlocks = Call::Shared::kStateWarps / kWarps;
  const KeptStates& to = call.p.kept;
  if (!to.wanted) return;
  const int of_head = (call.piece.begin * call.order.each + n) * kBlocks + block, rows = of_head * kWarps + call.warp;
  if constexpr (Call::kNormalized)
    each_of_column({call.warp, call.lane},
                   [&](int half, int row) { to.columns[call.head * to.stride + of_head * 64 + row] = z[half]; });
  if (call.lane > 0) return;
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

/// A warp of the backward: S of every chunk.
template <typename Call>
__device__ __forceinline__ void load_kept_states(const Call& call) {
  using Shared = typename Call::Shared;
  constexpr int kBlocks = Call::kBlocks;
  constexpr uint32_t kUnitBytes = Call::kHalf ? kBlocks * kWarps * sizeof(float) : 0,
                     kColumnBytes = Call::kNormalized ? kBlocks * 64 * sizeof(float) : 0;
  const KeptStates& from = call.p.kept;
  auto& small = call.small();
  call.each_chunk([&](const auto& chunk) {
    ptx::mbarrier_wait(&small.state_empty[chunk.slot], chunk.parity ^ 1);
    if (call.lane > 0) return;
    uint64_t* const full = &small.state_full[chunk.slot];
    const int of_head = static_cast<int>(chunk.first / kChunk) * kBlocks;
    ptx::mbarrier_arrive_expect(full, Shared::kState + kUnitBytes + kColumnBytes);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      ptx::load_tile(call.state(chunk.slot) + block * kPanel, &from.states, full, 0, call.h, (of_head + block) * 64,
                     call.b);
    if constexpr (Call::kHalf)
      ptx::load_run(small.state_units[chunk.slot], from.units + call.head * from.stride + of_head * kWarps, kUnitBytes,
                    full);
    if constexpr (Call::kNormalized)
      ptx::load_run(call.columns().states[chunk.slot], from.columns + call.head * from.stride + of_head * 64,
                    kColumnBytes, full);
  });
}

}  // namespace lethe::matrix_state
