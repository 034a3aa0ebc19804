#pragma once
// W = (I + G β)⁻¹ G of every chunk (delta_forward.cuh), a CTA a chunk. Warps have their blocks in turn, so that the last block, which has most to do, is
// not always on the same of a multiprocessor's four schedulers.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_solution.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_arguments.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_rows.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// kBlocks: of 64 columns of the keys.
template <int kBlocks>
struct SolveShared {
  struct Small {
    float scratch[kWarps][16 * 20];
    ChunkGates gates;
    alignas(16) float key_unit[kChunk];
    float beta[kChunk], strength[kChunk];
    uint64_t full;
  };
  static constexpr int kSolution = kBlocks * kPanel, kSmall = kSolution + kPanel;
  static constexpr int kBytes = kSmall + static_cast<int>(sizeof(Small));
};

template <typename Element, int kBlocks>
__global__ void __launch_bounds__(kComputing, 5) solve_chunks(const __grid_constant__ DeltaSolveArguments p) {
  using Shared = SolveShared<kBlocks>;
  extern __shared__ __align__(1024) char memory[];
  auto& small = *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  const int block = ptx::in_uniform_register((threadIdx.x / 32 + blockIdx.x) % kWarps), lane = threadIdx.x % 32,
            i0 = 16 * block + lane / 4;
  const int64_t head = blockIdx.x / p.chunks, b = head / p.heads, h = head % p.heads,
                first = static_cast<int64_t>(blockIdx.x % p.chunks) * kChunk;
  let_next_kernel_start();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&small.full, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect(&small.full, kBlocks * kPanel);
    load_tile_of<kBlocks>(memory, p.map, p.key, &small.full, 0, first, b, h);
  }
  const bool gated = p.gate.log_forget != nullptr;
  RawChunk raw;
  if (block == 0) raw.load(p.gate, p.beta, p.length, b, h, first, lane);
  __syncthreads();
  if (block == 0) {
    *reinterpret_cast<float2*>(&small.beta[2 * lane]) = raw.beta;
    if (gated) prepare_gates(small.gates, raw.gates, 1.0f, 1.0f, false, lane);
  }
  const uint32_t key = ptx::shared_address(memory), solution = key + Shared::kSolution;
  ptx::mbarrier_wait(&small.full, 0);
  divide_rows_by_largest<Element, kBlocks>(key, small.key_unit, block, lane);
  __syncthreads();
  SolvedChunk& to = p.solved[blockIdx.x];
  if (threadIdx.x < kChunk) {
    const float unit = small.key_unit[threadIdx.x];
    small.strength[threadIdx.x] = small.beta[threadIdx.x] * unit;
    to.key_unit[threadIdx.x] = unit;
  }
  Sums sums = {};
#pragma unroll
  for (int k = 0; k < 4 * kBlocks; ++k) {
    uint32_t a[4];
    load_left(a, key, block, k, lane);
#pragma unroll
    for (int j = 0; j < kWarps; ++j) {
      if (j > block) break;
      uint32_t right[4];
      load_right_columns(right, key, k, j, lane);
      ptx::multiply_add<__half>(sums[2 * j], a, right[0], right[1]);
      ptx::multiply_add<__half>(sums[2 * j + 1], a, right[2], right[3]);
    }
  }
  // |k|² is on the diagonal: of rows g and g + 8 the lanes have it whose columns those are.
  float square[2] = {0.0f, 0.0f};
#pragma unroll
  for (int c = 0; c < 8; ++c)
    if (c / 2 == block) square[c % 2] = lane / 4 % 2 ? sums[c][2 * (c % 2) + 1] : sums[c][2 * (c % 2)];
  if (lane % 4 == lane / 8) {
    to.key_norm[i0] = __fsqrt_rn(square[0]) * small.key_unit[i0];
    to.key_norm[i0 + 8] = __fsqrt_rn(square[1]) * small.key_unit[i0 + 8];
  }
  __syncthreads();
  weigh_pairs(sums, small.gates, gated, 1, block, lane);
  solve_rows(sums, solution, small.scratch[block], small.strength, small.key_unit, block, lane);
  if (p.transposed) {
    uint4* const transposed = p.transposed + int64_t{1} * blockIdx.x * (kLowerBlocks * 32) + lane;
    for (int j = 0; j <= block; ++j) {
      uint32_t words[4];
      load_transposed_left(words, solution, block, j, lane);
      transposed[32 * lower_block(block, j)] = {words[0], words[1], words[2], words[3]};
    }
  }
  scale_columns(sums, small.strength, lane);
  float unit[2];
  store_fragments(sums, unit, 0, block + 1, [&](int k) { return to.inverse + 32 * lower_block(block, k) + lane; });
  if (lane % 4 == 0) {
    to.unit[i0] = small.key_unit[i0] * unit[0];
    to.unit[i0 + 8] = small.key_unit[i0 + 8] * unit[1];
  }
}

}  // namespace lethe::matrix_state
