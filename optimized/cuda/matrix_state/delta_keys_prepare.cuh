#pragma once
// Of a chunk of 64 tokens all that the state does not enter (delta_keys.hpp), a CTA a chunk, a warp 16 tokens.
//
// Halving, as in vector_sweep.cuh: of i > j let 2n be the smallest aligned run of tokens that has both. The gates between them are those from j to the middle
// of the run, times those from the middle to i: products of gates, of which none is divided by, so that 0 is 0 and 1 is 1. Within 16 tokens a lane has two
// neighbours: of further halvings both have the same factor, and their rows are left and right operands in its registers. A lane has eight successive
// channels of 32: which channels meet in which product is no matter.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_keys_pairs.cuh"
#include "optimized/cuda/matrix_state/delta_solution.cuh"

namespace lethe::matrix_state {

/// CTAs of a multiprocessor, four where it has 228 KB of shared memory.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
inline constexpr int kPrepareCtas = 4;
#else
inline constexpr int kPrepareCtas = 3;
#endif

template <typename Element, int kRows>
__global__ void __launch_bounds__(kComputing, kPrepareCtas)
    prepare_delta_keys(const __grid_constant__ DeltaKeyArguments p) {
  using Block = DeltaKeyBlock<Element, kRows>;
  using Memory = typename Block::Memory;
  using Record = DeltaKeyRecord<kRows>;
  extern __shared__ __align__(1024) char memory[];
  // Warps have their blocks in turn: the last block, which has most to do, is not always on the same scheduler.
  const int block = __shfl_sync(kAllLanes, (threadIdx.x / 32 + blockIdx.x) % kWarps, 0), lane = threadIdx.x % 32,
            g = lane / 4, t = lane % 4;
  const unsigned chunks = static_cast<unsigned>(p.chunks), heads = static_cast<unsigned>(p.heads),
                 head = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const int64_t b = head / heads, h = head % heads, first = (p.first_chunk + static_cast<int64_t>(chunk)) * kChunk;
  let_next_kernel_start();
  char* const record = p.records + (int64_t{1} * head * p.stride + chunk) * Record::kBytes;
  const int inside = static_cast<int>(min(p.length - first, static_cast<int64_t>(kChunk))) - 16 * block;
  const Block call{{p, memory, record, block, lane, b, h, first + 16 * block, inside}};
  auto& small = call.small();

  // Of a token of each of the first two lanes of four: the lane's first or second one.
  const int own_row = 16 * block + call.own(t % 2);
  const float beta_inside =
                  load_global(p.beta.log_forget + b * p.beta.batch_stride +
                              min(first + own_row, p.length - 1) * p.beta.token_stride + h * p.beta.head_stride),
              beta = first + own_row < p.length ? beta_inside : 0.0f;
  {
    typename Block::OwnRows keys, queries;
    call.load_rows(p.key, keys);
    call.load_rows(p.query, queries);
    call.multiply_gates();
    float key_unit[2], query_unit[2];
    call.measure(keys, Memory::kReadKey, key_unit);
    call.measure(queries, 0, query_unit);
    if (t < 2) {
      const float of_key = t ? key_unit[1] : key_unit[0], of_query = t ? query_unit[1] : query_unit[0];
      small.key_unit[own_row] = of_key;
      small.query_unit[own_row] = of_query;
      small.strength[own_row] = beta * of_key;
      reinterpret_cast<float*>(record + Record::kKeyUnits)[own_row] = of_key * (1.0f / kRowScale);
      reinterpret_cast<float*>(record + Record::kQueryUnits)[own_row] = of_query * (p.scale / kRowScale);
      reinterpret_cast<float*>(record + Record::kBeta)[own_row] = beta;
    }
  }
  float logs[2][8];
  const char* const own_gates = call.own_gates();
  call.load_gates(logs, own_gates, 0);
  __syncthreads();  // products of gates
  call.multiply_blocks();
  typename Block::Pairs near_pairs;
#pragma unroll 1
  for (int s = 0; s < Block::kSteps; ++s) {
    float gates[2][8];
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int c = 0; c < 8; ++c) gates[half][c] = exp2_approximate(logs[half][c] * std::numbers::log2e_v<float>);
    call.load_gates(logs, own_gates, s + 1);
    call.halve(gates, s, near_pairs);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    near_pairs.beside[i] = quad_sum(near_pairs.beside[i]);
    near_pairs.own[i] = quad_sum(near_pairs.own[i]);
  }
  __syncthreads();  // tiles
  Sums sums = {}, pairs = {};
  call.multiply_earlier(sums, pairs);
  __syncwarp();  // who reads its rows no more has its scratch there
  float* const scratch = reinterpret_cast<float*>(memory + Memory::kScratch + block * Memory::kScratchStride);
  call.place(sums, near_pairs, 0, scratch);
  call.place(pairs, near_pairs, 1, scratch);
  const float* const key_unit = &small.key_unit[16 * block + g];
  const float* const query_unit = &small.query_unit[16 * block + g];
  constexpr float kUnscale = 1.0f / (kRowScale * kRowScale);
  {
    const float row[2] = {query_unit[0] * (p.scale * kUnscale), query_unit[8] * (p.scale * kUnscale)};
    call.store_triangle(pairs, row, small.key_unit, record + Record::kPairs);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[c][e] *= kUnscale;
  solve_rows(sums, call.tile(Memory::kSolution), scratch, small.strength, small.key_unit, block, lane);
  const float row[2] = {-key_unit[0], -key_unit[8]};
  call.store_triangle(sums, row, small.key_unit, record + Record::kInverse);
  // The kernel before reads another window, so that only the end of this one must be after its own: one CTA is enough, and no other is kept.
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();
}

}  // namespace lethe::matrix_state
