#pragma once
// delta_solve.cuh's chunks, solved while others are swept: a multiprocessor has one CTA of the sweep, two with 64 rows, and fewer heads than that leave
// some free until the sweep ends. The chunks' order is that in which the sweeps of all heads need them.
//
// No CTA waits for one that has not started. One that solves waits for no other: it does all its chunks, whatever else has places. The sweep's start when
// all of the solve's have started, or ended where launches don't overlap; so each chunk that they wait for is that of a CTA that has its place until
// it has solved it. That holds however many CTAs the device has at once. With fewer than the launch took for granted, since other kernels have places, the
// solve's come in turn, and the sweep begins later.

#include "optimized/cuda/matrix_state/hopper/delta_solve.cuh"

namespace lethe::matrix_state {

/// A CTA has a multiprocessor to itself, each of its schedulers two or four warps.
template <int kBlocks>
struct SolveBesideShared : SolveShared<kBlocks, 16 / kBlocks> {
  static constexpr int kSolvers = 16 / kBlocks;
  static_assert(SolveBesideShared::kBytes <= 227 * 1024);
};

template <typename Element, int kBlocks>
__global__ void __launch_bounds__(SolveBesideShared<kBlocks>::kThreads, 1)
    solve_chunks_beside(const __grid_constant__ DeltaSolveArguments p) {
  using Solver = ChunkSolver<Element, kBlocks, SolveBesideShared<kBlocks>::kSolvers, true>;
  extern __shared__ __align__(1024) char memory[];
  const Solver solver(p, memory, ptx::in_uniform_register(threadIdx.x / 32));
  const auto make_barrier = [&] {
    if (solver.lane > 0) return;
    ptx::mbarrier_init(&solver.own.full, 1);
    ptx::mbarrier_init_fence();
  };
  constexpr bool kBegins = kBlocks == 2;  // before the marks; of 64 rows there are too few registers
  if constexpr (kBegins) {
    make_barrier();
    __syncwarp();
    solver.begin();
  }
  // None of the chunks that this warp solves is ready.
  for (int k = solver.lane, i = solver.order(k); i < solver.all(); k += 32, i = solver.order(k))
    p.ready[typename Solver::At(p, i).index(p)] = 0;
  __threadfence();
  if constexpr (!kBegins) make_barrier();
  __syncthreads();
  let_next_kernel_start();  // what it waits for is cleared
  solver.template run<kBegins>();
}

}  // namespace lethe::matrix_state
