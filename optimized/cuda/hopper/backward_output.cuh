#pragma once
// How dV and dK of a key tile leave the main kernel of the backward pass.

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/hopper/backward_shared.cuh"
#include "optimized/cuda/hopper/ptx/copy.cuh"
#include "optimized/cuda/hopper/ptx/fragment.cuh"

namespace lethe::hopper::backward_pass {

/// Stores a warpgroup's 64 keys of dV or dK, times `factor`, from its accumulators through its own rows of `panels`, [panel][key][64] of 16 bits,
/// by the copy engine. Thread 0 commits the copy, and must wait for its reads before others write there. Further accumulators of dK hold sums
/// of dS, which are not stored here.
template <typename Element, int kDim, bool kFloatSums>
template <int kCount>
__device__ void BackwardCta<Element, kDim, kFloatSums>::store_gradient(const CUtensorMap& map, uint8_t* panels,
                                                                       int warpgroup, int thread, float factor,
                                                                       const float (&grad)[kCount]) {
  const int warp = thread / 32, lane = thread % 32;
  const auto rows = [&](int panel) { return panels + panel * Shared::kKeyPanelBytes + warpgroup * 64 * 128; };
  const auto pair = [&](int i) { return pack<Element>(grad[i] * factor, grad[i + 1] * factor); };
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const uint32_t address = ptx::shared_address(rows(panel)) + ptx::swizzled_offset(16 * warp + lane % 16, 0);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const int i = 32 * panel + 4 * j;
      const uint32_t chunk = (j + lane / 16) << 4;  // 16-byte chunk of the row, before the swizzle
      ptx::store_matrices(address ^ chunk, pair(i), pair(i + 2), pair(i + 4), pair(i + 6));
    }
  }
  ptx::fence_async_shared();
  ptx::named_barrier_sync(kWarpgroup + warpgroup, 128);
  if (thread == 0) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const BackwardTile at = tile();
      ptx::store_tile(&map, rows(panel), 64 * panel, at.head, at.key_tile * kKeys + 64 * warpgroup, at.batch);
    }
    ptx::bulk_commit();
  }
}

}  // namespace lethe::hopper::backward_pass
