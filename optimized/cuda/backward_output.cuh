#pragma once
// How dV and dK of a key tile leave the main kernel of the backward pass.

#include "optimized/cuda/backward_shared.cuh"
#include "optimized/cuda/ptx/copy.cuh"
#include "optimized/cuda/ptx/fragment.cuh"

namespace lethe {

/// A warpgroup's 64 keys, from its accumulators: dV over V, and scale · dK over K, by way of the copy engine. Further accumulators of dK hold
/// sums of dS, which are not stored here. Nobody reads those rows of K and V any more.
template <typename Element, int kDim, bool kFloatSums>
template <int kCount>
__device__ void BackwardCta<Element, kDim, kFloatSums>::store_gradients(int warpgroup, int thread,
                                                                        const float (&grad_value)[kDim / 2],
                                                                        const float (&grad_key)[kCount]) {
  const int warp = thread / 32, lane = thread % 32;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    const uint32_t offset = warpgroup * 64 * 128 + ptx::swizzled_offset(16 * warp + lane % 16, 0);
    const uint32_t value_address = ptx::shared_address(shared.value[panel]) + offset;
    const uint32_t key_address = ptx::shared_address(shared.key[panel]) + offset;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const int i = 32 * panel + 4 * j;
      const uint32_t chunk = (j + lane / 16) << 4;  // 16-byte chunk of the row, before the swizzle
      ptx::store_matrices(value_address ^ chunk, ptx::pack<Element>(grad_value[i], grad_value[i + 1]),
                          ptx::pack<Element>(grad_value[i + 2], grad_value[i + 3]),
                          ptx::pack<Element>(grad_value[i + 4], grad_value[i + 5]),
                          ptx::pack<Element>(grad_value[i + 6], grad_value[i + 7]));
      ptx::store_matrices(key_address ^ chunk, ptx::pack<Element>(grad_key[i] * p.scale, grad_key[i + 1] * p.scale),
                          ptx::pack<Element>(grad_key[i + 2] * p.scale, grad_key[i + 3] * p.scale),
                          ptx::pack<Element>(grad_key[i + 4] * p.scale, grad_key[i + 5] * p.scale),
                          ptx::pack<Element>(grad_key[i + 6] * p.scale, grad_key[i + 7] * p.scale));
    }
  }
  ptx::fence_async_shared();
  ptx::named_barrier_sync(kWarpgroup + warpgroup, 128);
  if (thread == 0) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int token = key_tile * kKeys + 64 * warpgroup;
      ptx::store_tile(&p.grad_value, shared.value[panel] + warpgroup * 64 * 128, 64 * panel, head, token, batch);
      ptx::store_tile(&p.grad_key, shared.key[panel] + warpgroup * 64 * 128, 64 * panel, head, token, batch);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
  }
}

}  // namespace lethe
