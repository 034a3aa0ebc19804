#pragma once
// delta_state's values for a state of at most 128 rows, from the chunks that delta_solve.cuh solved: a CTA sweeps a head and kGroups times 64 columns of its
// state in chunks of 64 tokens, by the equations of delta_forward.cuh. For a backward also, or alone, the states before all chunks and R.
//
//   a warp         tiles of a chunk, its W when that is solved, its gates and strengths    → full
//   two warps      measure the rows of V; make those of Q float16                          → values, rows
//   a warp         units                                                                   → weighed
//   a warpgroup    makes the rows of K float16; P = Q Kᵀ; weights P and W by units         → prepared
//   one or two     S, rounded; X = V − γ K S; R = X − W β X;
//                  S = γ_C S + Kᵀ (D_C β R); O = γ Q S + P β R                             → measured, empty
//
// Of float16 the warpgroup that prepares then makes A of P and W, → folded, and O = γ Q S + A β X (delta_folded.cuh).
//
// The first four are warps 3, 0 and 1, 2, and warpgroup 1; of more than 64 rows and columns see delta_sweep_tiles.cuh. All that becomes float16 is divided by the
// units of delta_units.cuh. A stage's way through all of these takes three chunks' time, so each wait in it counts: units wait for V's rows, not for Q's, and O
// leaves by a place of its own, so that a stage is empty with its chunk.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_tiles.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_sweep_values.cuh"

namespace lethe::matrix_state {

template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
__global__ void __launch_bounds__(DeltaSweepShared<kBlocks, kGroups>::kThreads,
                                  DeltaSweepShared<kBlocks, kGroups>::kTogether)
    delta_sweep(const __grid_constant__ DeltaSweepArguments p) {
  using Shared = DeltaSweepShared<kBlocks, kGroups>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = ptx::in_uniform_register(threadIdx.x / 32), ctas = delta_ctas(p.columns, kGroups),
            head = static_cast<int>(blockIdx.x) / ctas, own = static_cast<int>(threadIdx.x % 32),
            lane = kSweepsByTiles<kBlocks, kGroups, kReads, kKeeps> ? own : __shfl_sync(kAllLanes, own, own),  // held, where there are registers: products.cuh
      b = head / p.heads, h = head % p.heads, tile = static_cast<int>(blockIdx.x) % ctas * kGroups;
  const DeltaSweep<Element, kBlocks, kGroups, kReads, kKeeps> call{p, memory, warp % kWarps, lane, b, h, head, tile};
  using Roles = std::conditional_t<kSweepsByTiles<kBlocks, kGroups, kReads, kKeeps>, DeltaTilesShared<kBlocks, kGroups>, Shared>;
  run_roles<Roles>(call, warp / kWarps);
}

}  // namespace lethe::matrix_state
