#pragma once
// delta_solve.cuh's chunks, solved while others are swept: a state of more than 64 rows has a CTA of the sweep on a multiprocessor, and fewer heads than
// multiprocessors leave some free until the sweep ends. A CTA is several four warps, which solve a chunk each and then the next one; the chunks' order is that
// in which the sweeps of all heads need them.
//
// No CTA waits for one that has not started. One that solves waits for no other: it does all its chunks, whatever else has places. The sweep's start when
// all of the solve's have started, or ended where launches don't overlap; so each chunk that they wait for is that of a CTA that has its place until
// it has solved it. That holds however many CTAs the device has at once. With fewer than the launch took for granted, since other kernels have places, the
// solve's come in turn, and the sweep begins later.

#include "optimized/cuda/matrix_state/hopper/delta_solve.cuh"
#include "optimized/cuda/ptx/copy_async.cuh"

namespace lethe::matrix_state {

struct SolveBesideShared : SolveShared<2> {
  struct Small : SolveShared<2>::Small {
    float beta[kChunk], gate[kChunk];  ///< of the next chunk, as they are in memory
  };
  /// Of four warps; a CTA has a multiprocessor to itself.
  static constexpr int kGroupBytes = (kSmall + static_cast<int>(sizeof(Small)) + 1023) / 1024 * 1024;
  static constexpr int kGroups = 5, kThreads = kGroups * kComputing, kBytes = kGroups * kGroupBytes;
  static constexpr int kBarriers = 3;  ///< named ones
  static_assert(1 + kGroups * kBarriers <= 16 && kBytes <= 227 * 1024);
};

/// Four warps of a CTA that solve chunks in turn.
template <typename Element>
struct ChunkSolver {
  using Shared = SolveBesideShared;
  const DeltaSolveArguments& p;
  char* const memory;
  const int group, warp, lane;  ///< of the CTA's four warps, one of these, its lane

  __device__ Shared::Small& small() const { return *reinterpret_cast<Shared::Small*>(memory + Shared::kSmall); }
  __device__ int barriers() const { return group * Shared::kBarriers; }
  __device__ void sync() const { ptx::named_barrier_sync(kPrepareBarrier + barriers(), kComputing); }
  /// The number of chunks, and of the k-th of these warps among them; that is no smaller when there are no more.
  __device__ int all() const { return p.all_heads * p.chunks; }
  __device__ int order(int k) const {
    const int own = static_cast<int>(blockIdx.x) * Shared::kGroups + group,
              groups = static_cast<int>(gridDim.x) * Shared::kGroups;
    if (k < p.rounds) return own + k * groups;
    if (static_cast<int>(blockIdx.x) >= p.staying) return all();
    return p.rounds * groups + own + (k - p.rounds) * p.staying * Shared::kGroups;
  }
  /// Where a chunk is.
  struct At {
    int head, b, h, first;
    int index;  ///< among those of all heads

    __device__ At(const DeltaSolveArguments& p, int order)
        : head(order % p.all_heads), b(head / p.heads), h(head % p.heads), first(order / p.all_heads * kChunk),
          index(head * p.chunks + order / p.all_heads) {}
  };

  /// One thread.
  __device__ __forceinline__ void load(const At& at) const {
    ptx::mbarrier_arrive_expect(&small().full, 2 * kPanel);
    load_tile_of<2>(memory, p.map, p.key, &small().full, 0, at.first, at.b, at.h);
  }
  /// Begins to copy the strengths of a warp's rows, and for the first rows' warp the gates of all: a lane those that it reads itself.
  __device__ __forceinline__ void copy_tokens(const At& at, int block) const {
    const auto copy = [&](float* to, const Gates& from, int row) {
      const int64_t token = int64_t{at.first} + row;
      ptx::copy_word(ptx::shared_address(to + row),
                     from.log_forget + at.b * from.batch_stride + at.h * from.head_stride + token * from.token_stride,
                     token < p.length);
    };
    if (lane < 16) copy(small().beta, p.beta, 16 * block + lane);
    if (p.gate.log_forget && block == 0)
      for (int i = 0; i < 2; ++i) copy(small().gate, p.gate, 2 * lane + i);
    ptx::copies_commit();
  }
  /// Which rows a warp has: by the chunk's number others, so that each of a multiprocessor's schedulers has its share of the last ones, which have most to do.
  __device__ int block_of(int k) const { return ptx::in_uniform_register((warp + group + k) % kWarps); }

  __device__ __forceinline__ void run() const {
    const bool loads = threadIdx.x % kComputing == 0;
    int next = order(0);
    if (next >= all()) return;
    if (loads) load(At(p, next));
    copy_tokens(At(p, next), block_of(0));
    for (int k = 0; next < all(); ++k) {
      const int index = At(p, next).index;
      solve(index, k);
      next = order(k + 1);
      sync();  // all has been written, and read in shared memory
      if (loads) ptx::store_release(&p.ready[index], 1);
    }
  }

  /// The k-th chunk; meanwhile begins to load the next one. The next phase of `full` begins after all have waited for this one.
  __device__ __forceinline__ void solve(int index, int k) const {
    const int block = block_of(k);
    const bool gated = p.gate.log_forget != nullptr;
    ptx::copies_wait<0>();
    if (gated && block == 0)
      prepare_gates(small().gates, {small().gate[2 * lane], small().gate[2 * lane + 1], 0.0f}, 1.0f, 1.0f, false, lane);
    const uint32_t solution = ptx::shared_address(memory) + Shared::kSolution;
    ptx::mbarrier_wait(&small().full, k % 2);
    float products[32];
    multiply_keys<Element, 2>(products, memory, block, lane, [&](int row, float unit) {
      small().key_unit[row] = unit;
      small().strength[row] = small().beta[row] * unit;
      small().factor[row] = -small().strength[row] * unit;
      p.solved[index].key_unit[row] = unit;
    });
    Sums& sums = by_tiles(products);
    keep_norms(p.solved[index], sums, block, lane);
    sync();
    if (const int next = order(k + 1); next < all()) {  // the keys have been read
      const At at(p, next);
      if (threadIdx.x % kComputing == 0) load(at);
      copy_tokens(at, block_of(k + 1));
    }
    weigh_keys(sums, small().gates, gated, small().key_unit, block, lane);
    solve_rows(sums, solution, small().scratch[block], NegativeFactors{small().factor}, block, lane, barriers());
    if (p.transposed)
      keep_transposed(p.transposed + int64_t{1} * index * (kLowerBlocks * 32) + lane, solution, block, lane);
    keep_solution(p.solved[index], sums, small().strength, small().key_unit, block, lane);
  }

  /// None of the chunks that these warps solve is ready.
  __device__ __forceinline__ void clear() const {
    for (int k = threadIdx.x % kComputing, i = order(k); i < all(); k += kComputing, i = order(k))
      p.ready[At(p, i).index] = 0;
    __threadfence();
  }
};

template <typename Element>
__global__ void __launch_bounds__(SolveBesideShared::kThreads, 1)
    solve_chunks_beside(const __grid_constant__ DeltaSolveArguments p) {
  using Shared = SolveBesideShared;
  extern __shared__ __align__(1024) char memory[];
  const int warp = ptx::in_uniform_register(threadIdx.x / 32), group = warp / kWarps;
  const ChunkSolver<Element> solver{p, memory + group * Shared::kGroupBytes, group, warp % kWarps,
                                    static_cast<int>(threadIdx.x % 32)};
  solver.clear();
  if (threadIdx.x % kComputing == 0) {
    ptx::mbarrier_init(&solver.small().full, 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  let_next_kernel_start();  // what it waits for is cleared
  solver.run();
}

}  // namespace lethe::matrix_state
