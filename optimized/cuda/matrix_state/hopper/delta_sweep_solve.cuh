#pragma once
// Where values alone are made: the warps of delta_sweep.cuh that measure and divide rows, and the warpgroup that prepares a chunk and solves as much of it as
// no state enters. R = (I + G β)⁻¹ X follows block after block of 16 tokens (delta_sweep_values.cuh), so only the blocks on the diagonal are solved, each by its
// own warp; the others stay those of G.

#include "optimized/cuda/matrix_state/delta_solution.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_roles.cuh"

namespace lethe::matrix_state {

/// A warp's diagonal block, which solve_diagonal has left in `scratch`.
__device__ __forceinline__ void take_diagonal(Sums& sums, const float* scratch, int block, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = scratch[(8 * n + 2 * t + e % 2) * kSolutionStride + g + 8 * (e / 2)];
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
      if (k == block)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[2 * k + n][e] = x[e];
  }
}

/// A warp: two of four blocks of rows; Q's last, which only the units wait for.
template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::divide_and_measure(
    int half) const {
  ptx::RingPosition at;
  for (int n = 0; n < count(); ++n, at.advance(Shared::kStages)) {
    DeltaTokenUnits& units = small().units[at.index];
    ChunkKeys& keys = small().keys[at.index];
    const uint32_t query = ptx::shared_address(stage(at.index));
    ptx::mbarrier_wait(&small().full[at.index], at.parity);
#pragma unroll 1
    for (int i = 4 * half; i < 4 * half + 4; ++i) {
      const QuarterRow<kBlocks> part(query + Shared::kKey, i, lane);
      const DividedRow row = divide_row<Element, true>(part);
      if (lane < 8) {
        keys.unit[part.row] = row.unit;
        keys.norm[part.row] = row.unit * row.length;
        small().factor[at.index][part.row] = -small().tokens[at.index].beta[part.row] * row.unit * row.unit;
      }
    }
#pragma unroll 1
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const RowPart<kGroups> part(query + Shared::kValue, i, lane);
      const float most = measure_row<Element>(part);
      if (lane < 16) units.largest_value[part.row] = most;
    }
    ptx::fence_async_shared();
    arrive_warp(&small().rows[at.index], lane);
#pragma unroll 1
    for (int i = 4 * half; i < 4 * half + 4; ++i) {
      const QuarterRow<kBlocks> part(query, i, lane);
      const DividedRow row = divide_row<Element, false>(part);
      if (lane < 8) units.query_unit[part.row] = row.unit;
    }
    ptx::fence_async_shared();
    arrive_warp(&small().queries[at.index], lane);
  }
}

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__device__ __forceinline__ void DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>::prepare_and_solve() const {
  using ptx::Major;
  const int block = static_cast<int>(threadIdx.x / 32 % kWarps);  // in a register of each thread: fewer spills
  const bool gated = p.gate.log_forget != nullptr;
  const int i0 = 16 * block + lane / 4;
  ptx::RingPosition at;
  for (int n = 0; n < count(); ++n, at.advance(Shared::kStages)) {
    char* const query = stage(at.index);
    char* const key = query + Shared::kKey;
    DeltaTokens& tokens = small().tokens[at.index];
    DeltaTokenUnits& units = small().units[at.index];
    ChunkKeys& keys = small().keys[at.index];
    float sums[32];
    const auto multiply = [&](const char* left) {  // its rows with all keys
      ptx::undefined(sums);
      ptx::fence_registers(sums);
      ptx::wgmma_fence();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        issue_product<__half, Major::kK, Major::kK>(sums, left + m * kPanel, key + m * kPanel, m > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(sums);
    };
    ptx::mbarrier_wait(&small().rows[at.index], at.parity);
    multiply(key);  // G over the keys' units
    weigh_lower_pairs<1>(by_tiles(sums), tokens.gates, gated, block, lane, [](int) {});
    solve_diagonal(by_tiles(sums), small().scratch[block], NegativeFactors{small().factor[at.index]}, block, lane);
    take_diagonal(by_tiles(sums), small().scratch[block], block, lane);
    ptx::mbarrier_wait(&small().weighed[at.index], at.parity);
    {
      const float* const reciprocal = tokens.reciprocal();
      const float outer[2] = {-keys.unit[i0] * reciprocal[i0], -keys.unit[i0 + 8] * reciprocal[i0 + 8]};
      store_weighted<false, true>(triangle(n), by_tiles(sums), units.of_pair(), outer, block, lane, rest(n));
    }
    multiply(query);  // P over the units of queries and keys: the queries' rows were there before the units
    weigh_lower_pairs<0>(by_tiles(sums), tokens.gates, gated, block, lane, [](int) {});
    {
      const uint16_t* const of_state = small().of_state[n % 2];
      const float outer[2] = {power_of(of_state[i0]), power_of(of_state[i0 + 8])};
      store_weighted<false, true>(pairs(n), by_tiles(sums), units.of_pair(), outer, block, lane);
    }
    arrive_warp(&small().prepared[at.index], lane);
  }
}

}  // namespace lethe::matrix_state
