#pragma once
// delta_state's values for a state of at most 128 rows: a CTA sweeps a head and kGroups times 64 columns of its state in chunks of 64 tokens, by the equations
// of delta_forward.cuh. For a backward also, or alone, the states before all chunks and R, from the chunks that delta_solve.cuh solved.
//
//   a warp         tiles of a chunk, its W where that is solved before, its gates and strengths    → full
//   two warps      make the rows of Q float16, measure those of V; for values alone those of K first  → rows
//   a warp         units                                                                           → weighed
//   a warpgroup    makes the rows of K float16; P = Q Kᵀ; weights P and W by units; for values alone
//                  G = K Kᵀ, its diagonal blocks solved; weights it; P, weighted                   → prepared
//   one or two     S, rounded; X = V − γ K S; R of X;
//                  S = γ_C S + Kᵀ (D_C β R); O = γ Q S + P β R                                     → measured, empty
//
// The first four are warps 0, 2 and 3, 1, and warpgroup 1; for values alone 3, 0 and 1, 2. All that becomes float16 is divided by the units of delta_units.cuh.
// For values alone see delta_sweep_solve.cuh and delta_sweep_values.cuh, else delta_sweep_states.cuh, where O lies over Q or V: so that a chunk's rows of O or R
// need not have left before the next one begins, its stage is empty only during that.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_solve.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_states.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_values.cuh"

namespace lethe::matrix_state {

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__global__ void __launch_bounds__(DeltaSweepShared<kBlocks, kGroups>::kThreads,
                                  DeltaSweepShared<kBlocks, kGroups>::kTogether)
    delta_sweep(const __grid_constant__ DeltaSweepArguments p) {
  using Call = DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps>;
  extern __shared__ __align__(1024) char memory[];
  const int ctas = delta_ctas(p.columns, kGroups), sweeps = p.all_heads * ctas;
  const bool second = Call::kHalves && static_cast<int>(blockIdx.x) >= sweeps;
  const int index = static_cast<int>(blockIdx.x) - (second ? sweeps : 0), head = index / ctas,
            tile = index % ctas * kGroups, b = head / p.heads, h = head % p.heads;
  const int warp = ptx::in_uniform_register(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const Call call{p, memory, warp % kWarps, lane, b, h, head, tile, second};
  run_roles<typename Call::Shared>(call, warp / kWarps);
}

}  // namespace lethe::matrix_state
