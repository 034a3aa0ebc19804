#pragma once
// W = (I + G β)⁻¹ G of every chunk (delta_forward.cuh), a CTA a chunk; the square of a key's length is a float. Warps have their blocks in turn, so that
// the last block, which has most to do, is not always on the same of a multiprocessor's four schedulers. delta_solve_beside.cuh has the same chunks
// solved while others are swept.

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
    float strength[kChunk];            ///< β times the key's unit
    alignas(16) float factor[kChunk];  ///< −β times that twice
    uint64_t full;
  };
  static constexpr int kSolution = kBlocks * kPanel, kSmall = kSolution + kPanel;
  static constexpr int kBytes = kSmall + static_cast<int>(sizeof(Small));
};

/// G of a warp's rows, from its products of keys: over the units of both, up to its diagonal block.
__device__ __forceinline__ void weigh_keys(Sums& sums, const ChunkGates& gates, bool gated, const float* units,
                                           int block, int lane) {
  const int i0 = 16 * block + lane / 4;
  const float row[2] = {reciprocal_of_power(units[i0]), reciprocal_of_power(units[i0 + 8])};
  weigh_lower_pairs<1>(sums, gates, gated, block, lane, [&](int c) {
    const float2 unit = *reinterpret_cast<const float2*>(&units[8 * c + lane % 4 * 2]);
    const float near = reciprocal_of_power(unit.x), far = reciprocal_of_power(unit.y);
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[c][e] = sums[c][e] * row[e / 2] * (e % 2 ? far : near);
  });
}

/// A warp's rows of the products of keys; `measured` gets each row and its unit, of one lane.
template <typename Element, int kBlocks, typename Measured>
__device__ __forceinline__ void multiply_keys(float (&products)[32], char* keys, int block, int lane,
                                              const Measured& measured) {
  const uint32_t key = ptx::shared_address(keys);
  ptx::undefined(products);
  ptx::fence_registers(products);
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
    uint32_t left[16];  // this warp's rows, which are not those of its place among the four
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t four[4];
      load_left(four, key + i * kPanel, block, k, lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) left[4 * k + j] = four[j];
    }
    ptx::fence_registers(left);
    ptx::wgmma_fence();
    issue_product<Element, ptx::Major::kK>(products, left, keys + i * kPanel, i > 0);
    ptx::wgmma_commit();
    if (i == 0) {
      const RowPart<kBlocks> part(key, block, lane);
      uint4 pieces[4 * kBlocks];
      load_row(pieces, part);
      const float unit = power_of_two_below(largest_of_row<Element>(pieces));
      if (lane < 16) measured(part.row, unit);
    }
    ptx::wgmma_wait<0>();
    ptx::fence_registers(products);
    ptx::fence_registers(left);
  }
}

/// |k| of a warp's rows: |k|² is on the diagonal, of rows g and g + 8 the lanes have it whose columns those are.
__device__ __forceinline__ void keep_norms(SolvedChunk& to, const Sums& sums, int block, int lane) {
  float square[2] = {0.0f, 0.0f};
#pragma unroll
  for (int c = 0; c < 8; ++c)
    if (c / 2 == block) square[c % 2] = lane / 4 % 2 ? sums[c][2 * (c % 2) + 1] : sums[c][2 * (c % 2)];
  if (lane % 4 != lane / 8) return;
  const int i0 = 16 * block + lane / 4;
  to.key_norm[i0] = __fsqrt_rn(square[0]);
  to.key_norm[i0 + 8] = __fsqrt_rn(square[1]);
}

/// W's rows of a warp, of which `strength` and `key_unit` are those of the chunk.
__device__ __forceinline__ void keep_solution(SolvedChunk& to, Sums& sums, const float* strength, const float* key_unit,
                                              int block, int lane) {
  float largest[2] = {0.0f, 0.0f}, unit[2], inverse[2];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    if (c / 2 > block) break;
    const float2 factor = *reinterpret_cast<const float2*>(&strength[8 * c + lane % 4 * 2]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[c][e] *= e % 2 ? factor.y : factor.x;
      largest[e / 2] = fmaxf(largest[e / 2], fabsf(sums[c][e]));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unit[half] = power_of_two_below(quad_max(largest[half]));
    inverse[half] = reciprocal_of_power(unit[half]);
  }
#pragma unroll
  for (int k = 0; k < kWarps; ++k) {
    if (k > block) break;
    uint32_t left[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&x)[4] = sums[2 * k + i / 2];
      left[i] = pack<__half>(x[i % 2 * 2] * inverse[i % 2], x[i % 2 * 2 + 1] * inverse[i % 2]);
    }
    to.inverse[32 * lower_block(block, k) + lane] = {left[0], left[1], left[2], left[3]};
  }
  if (lane % 4 > 0) return;
  const int i0 = 16 * block + lane / 4;
  to.unit[i0] = key_unit[i0] * unit[0];
  to.unit[i0 + 8] = key_unit[i0 + 8] * unit[1];
}

/// Wᵀ's blocks of the warp's rows of W, which are solved, to the lane's place in a chunk's of DeltaArrays::inverse.
__device__ __forceinline__ void keep_transposed(uint4* to, uint32_t solution, int block, int lane) {
  for (int j = 0; j <= block; ++j) {
    uint32_t words[4];
    load_transposed_left(words, solution, block, j, lane);
    to[32 * lower_block(block, j)] = {words[0], words[1], words[2], words[3]};
  }
}

template <typename Element, int kBlocks>
__global__ void __launch_bounds__(kComputing, 6) solve_chunks(const __grid_constant__ DeltaSolveArguments p) {
  using Shared = SolveShared<kBlocks>;
  extern __shared__ __align__(1024) char memory[];
  auto& small = *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  const int chunk = static_cast<int>(blockIdx.y + gridDim.y * blockIdx.z);
  if (chunk >= p.chunks) return;
  const int block = ptx::in_uniform_register((threadIdx.x / 32 + blockIdx.x) % kWarps), lane = threadIdx.x % 32,
            head = static_cast<int>(blockIdx.x), b = head / p.heads, h = head % p.heads, first = chunk * kChunk;
  const int64_t index = int64_t{1} * head * p.chunks + chunk;
  let_next_kernel_start();
  if (chunk == 0)
    for (unsigned i = blockIdx.x * kComputing + threadIdx.x; i < p.marks; i += gridDim.x * kComputing) p.cleared[i] = 0;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(&small.full, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect(&small.full, kBlocks * kPanel);
    load_tile_of<kBlocks>(memory, p.map, p.key, &small.full, 0, first, b, h);
  }
  const bool gated = p.gate.log_forget != nullptr;
  const int64_t own = int64_t{first} + 16 * block + lane;
  float beta = 0.0f;
  if (lane < 16 && own < p.length)
    beta =
        load_global(p.beta.log_forget + b * p.beta.batch_stride + h * p.beta.head_stride + own * p.beta.token_stride);
  RawGates gates{};
  if (gated && block == 0)
    gates = load_gates(p.gate.log_forget + b * p.gate.batch_stride + h * p.gate.head_stride, p.gate.token_stride, first,
                       p.length, false, lane);
  __syncthreads();
  if (gated && block == 0) prepare_gates(small.gates, gates, 1.0f, 1.0f, false, lane);
  const uint32_t solution = ptx::shared_address(memory) + Shared::kSolution;
  SolvedChunk& to = p.solved[index];
  ptx::mbarrier_wait(&small.full, 0);
  float products[32];
  multiply_keys<Element, kBlocks>(products, memory, block, lane, [&](int row, float unit) {
    small.key_unit[row] = unit;
    small.strength[row] = beta * unit;
    small.factor[row] = -beta * unit * unit;
    to.key_unit[row] = unit;
  });
  Sums& sums = by_tiles(products);
  keep_norms(to, sums, block, lane);
  __syncthreads();
  weigh_keys(sums, small.gates, gated, small.key_unit, block, lane);
  solve_rows(sums, solution, small.scratch[block], NegativeFactors{small.factor}, block, lane);
  if (p.transposed) keep_transposed(p.transposed + index * (kLowerBlocks * 32) + lane, solution, block, lane);
  keep_solution(to, sums, small.strength, small.key_unit, block, lane);
}

}  // namespace lethe::matrix_state
