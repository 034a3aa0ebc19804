#pragma once
// What both sweeps of the delta rule have: a warpgroup that loads, measures rows and finds units, one that prepares chunks, one for each 64 columns of the
// state; barriers, registers.

#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 rows of the state. kGroups: of 64 columns, a warpgroup each.
template <int kBlocks, int kGroups>
struct DeltaSweepRoles {
  static constexpr int kThreads = (2 + kGroups) * kComputing, kStateWarps = kGroups * kWarps;
  static constexpr int kPreparingWarps = kWarps;  ///< of W and P
  static constexpr int kTogether = kBlocks == 1 ? 2 : 1;
  static constexpr int kFullArrivals = 1 + kArrivalsOfAWarp;  ///< of the copies, and of a warp that prepares gates
  /// Whether the loading warpgroup's first warps measure rows: they share a scheduler with the preparing ones of the first rows, which have least to do.
  static constexpr bool kDividesFirst = false;
  /// Of each thread at the launch, and of those of each warpgroup.
  static constexpr int kRegisters = kBlocks == 1   ? 80
                                    : kGroups == 1 ? 168
                                                   : 128,
                       kLoadRegisters = kBlocks == 1 ? 32 : 56, kPrepareRegisters = kBlocks == 1 ? 64 : 88,
                       kStateRegisters = kBlocks == 1 ? 144 : 184;
};

/// A warp: the largest of the numbers of a state.
template <int kCount>
__device__ __forceinline__ float largest_of_sums(const float (&sums)[kCount][32]) {
  float most[4] = {};
#pragma unroll
  for (int m = 0; m < kCount; ++m)
#pragma unroll
    for (int i = 0; i < 32; ++i) most[i % 4] = fmaxf(most[i % 4], fabsf(sums[m][i]));
  return largest_of_warp(fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
}

/// After a loop that at chunk n has waited for number max(n − 1, 0), of which number n is on barrier n % 2: until numbers chunks − 1 and chunks, and `stored`,
/// have ended. These numbers are the last ones of their barriers, and `stored` has one, so that no phase ends while the one before it is waited for.
__device__ __forceinline__ void wait_until_stored(uint64_t (&measured)[2], uint64_t& stored, int chunks) {
  for (int n = chunks - 1; n <= chunks; ++n) ptx::mbarrier_wait(&measured[n % 2], n / 2 % 2);
  ptx::mbarrier_wait(&stored, 0);
}

/// A warp: until a chunk's W is there, of which a CTA of delta_solve_beside.cuh makes `ready` 1; what copies W may be of the asynchronous proxy.
__device__ __forceinline__ void wait_for_solution(const int32_t* ready) {
  while (!__all_sync(~0u, ptx::load_acquire(ready) != 0)) __nanosleep(40);
  ptx::fence_async_global();
}

/// A warp: until chunk n's W is there, as wait_for_solution(), but lanes look at 32 chunks at once. `known`: so many are there.
__device__ __forceinline__ void wait_for_solutions(const int32_t* ready, int n, int chunks, int& known, int lane) {
  if (n < known) return;
  const int32_t* const own = ready + min(n + lane, chunks - 1);
  unsigned missing;
  while ((missing = ~__ballot_sync(kAllLanes, ptx::load_acquire(own) != 0)) & 1) __nanosleep(40);
  __syncwarp();
  known = missing ? n + __ffs(missing) - 1 : n + 32;
  ptx::fence_async_global();
}

/// A CTA: the barriers, then each warp's part of `call`.
template <typename Shared, typename Call>
__device__ __forceinline__ void run_roles(const Call& call, int warpgroup) {
  if (threadIdx.x == 0) {
    auto& small = call.small();
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::mbarrier_init(&small.full[i], Shared::kFullArrivals);
      if constexpr (requires { small.values; }) ptx::mbarrier_init(&small.values[i], 2 * kArrivalsOfAWarp);
      ptx::mbarrier_init(&small.rows[i], 2 * kArrivalsOfAWarp);
      ptx::mbarrier_init(&small.weighed[i], kArrivalsOfAWarp);
      ptx::mbarrier_init(&small.prepared[i], Shared::kPreparingWarps * kArrivalsOfAWarp);
      ptx::mbarrier_init(&small.empty[i], Shared::kStateWarps * kArrivalsOfAWarp);
    }
    for (uint64_t* barrier : {&small.measured[0], &small.measured[1], &small.stored})
      ptx::mbarrier_init(barrier, Shared::kStateWarps * kArrivalsOfAWarp);
    if constexpr (std::decay_t<Call>::kMakesFolded)
      for (int i = 0; i < 2; ++i) ptx::mbarrier_init(call.folded(i), kWarps * kArrivalsOfAWarp);
    if constexpr (requires { Shared::kSends; }) ptx::mbarrier_init(call.sent(), kArrivalsOfAWarp);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  if (warpgroup == 0) {
    change_registers<Shared::kRegisters, Shared::kLoadRegisters>();
    const int part = Shared::kDividesFirst ? kWarps - 1 - call.block : call.block;
    if (part == 0) call.load();
    else if (part == 1) call.weigh();
    else call.divide(part - 2);
  } else if (warpgroup == 1) {
    change_registers<Shared::kRegisters, Shared::kPrepareRegisters>();
    call.prepare();
  } else {
    change_registers<Shared::kRegisters, Shared::kStateRegisters>();
    call.sweep(warpgroup - 2);
  }
}

}  // namespace lethe::matrix_state
