#pragma once
// What both sweeps of the delta rule have: a warp that loads, a warpgroup that prepares chunks, one for each 64 columns of the state; barriers, registers.

#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 rows of the state. kGroups: of 64 columns, a warpgroup each.
template <int kBlocks, int kGroups>
struct DeltaSweepRoles {
  static constexpr int kThreads = (2 + kGroups) * kComputing, kStateWarps = kGroups * kWarps;
  static constexpr int kTogether = kBlocks == 1 ? 2 : 1;
  /// Of each thread at the launch, and of those of each warpgroup.
  static constexpr int kRegisters = kBlocks == 1   ? 80
                                    : kGroups == 1 ? 168
                                                   : 128,
                       kLoadRegisters = kBlocks == 1 ? 24 : 40, kPrepareRegisters = kBlocks == 1 ? 64 : 96,
                       kStateRegisters = kBlocks == 1 ? 152 : 184;
};

/// A CTA: the barriers, then each warp's part of `call`.
template <typename Shared, typename Call>
__device__ __forceinline__ void run_roles(const Call& call, int warpgroup) {
  if (threadIdx.x == 0) {
    auto& small = call.small();
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::mbarrier_init(&small.full[i], 2);
      ptx::mbarrier_init(&small.prepared[i], kWarps);
      ptx::mbarrier_init(&small.empty[i], Shared::kStateWarps);
    }
    for (int i = 0; i < 2; ++i) ptx::mbarrier_init(&small.measured[i], Shared::kStateWarps);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (warpgroup == 0) {
    change_registers<Shared::kRegisters, Shared::kLoadRegisters>();
    if (threadIdx.x < 32) call.load();
  } else if (warpgroup == 1) {
    change_registers<Shared::kRegisters, Shared::kPrepareRegisters>();
    call.prepare();
  } else {
    change_registers<Shared::kRegisters, Shared::kStateRegisters>();
    call.sweep(warpgroup - 2);
  }
}

}  // namespace lethe::matrix_state
