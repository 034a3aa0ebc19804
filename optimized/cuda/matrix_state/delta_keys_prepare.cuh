#pragma once
// Of a chunk of 64 tokens all that the state does not enter (delta_keys.hpp), a CTA a chunk, a warp 16 tokens.
//
// Halving, as in vector_sweep.cuh: of i > j let 2n be the smallest aligned run of tokens that has both. The gates between them are those from j to the middle
// of the run, times those from the middle to i: products of gates, of which none is divided by, so that 0 is 0 and 1 is 1. Within 16 tokens a lane's rows of a
// left and of a right operand are the same, so that both are made in its registers. A lane has eight successive channels of 32: which channels
// meet in which product is no matter.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_keys_tokens.cuh"
#include "optimized/cuda/matrix_state/delta_solution.cuh"

namespace lethe::matrix_state {

template <typename Element, int kRows>
__global__ void __launch_bounds__(kComputing, 3) prepare_delta_keys(const __grid_constant__ DeltaKeyArguments p) {
  using Block = DeltaKeyBlock<Element, kRows>;
  using Memory = typename Block::Memory;
  using Record = DeltaKeyRecord<kRows>;
  extern __shared__ __align__(1024) char memory[];
  // Warps have their blocks in turn: the last block, which has most to do, is not always on the same scheduler.
  const int block = __shfl_sync(kAllLanes, (threadIdx.x / 32 + blockIdx.x) % kWarps, 0), lane = threadIdx.x % 32,
            g = lane / 4, t = lane % 4, i0 = 16 * block + g;
  const unsigned chunks = static_cast<unsigned>(p.chunks), heads = static_cast<unsigned>(p.heads),
                 head = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const int64_t b = head / heads, h = head % heads, first = (p.first_chunk + static_cast<int64_t>(chunk)) * kChunk;
  let_next_kernel_start();
  const Block call{p, memory, block, lane, b, h, first + 16 * block};
  auto& small = call.small();
  char* const record = p.records + (int64_t{1} * head * p.stride + chunk) * Record::kBytes;
  float* const key_units = reinterpret_cast<float*>(record + Record::kKeyUnits);

  call.prefetch_gates();
  // Of a token of each of the first two lanes of four: row g or g + 8.
  const int64_t beta_token = first + i0 + 8 * (t % 2);
  const float beta_inside = load_global(p.beta.log_forget + b * p.beta.batch_stride +
                                        min(beta_token, p.length - 1) * p.beta.token_stride + h * p.beta.head_stride),
              beta = beta_token < p.length ? beta_inside : 0.0f;
  typename Block::Pairs near_pairs;
  float own[2] = {0.0f, 0.0f}, key_unit[2], query_unit[2];
  call.divide(p.key, Memory::kReadKey, key_unit);
  call.divide(p.query, 0, query_unit);
  float gates[2][8];
  call.load_gates(gates, 0);
#pragma unroll 1
  for (int s = 0; s < Block::kSteps; ++s) {
    float next[2][8];
    if (s + 1 < Block::kSteps) call.load_gates(next, s + 1);
    call.halve(gates, s, near_pairs, own);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int c = 0; c < 8; ++c) gates[half][c] = next[half][c];
  }
  near_pairs.select(g, t);
  own[0] = quad_sum(own[0]);
  own[1] = quad_sum(own[1]);
  if (t < 2) {
    const int row = i0 + 8 * t;
    const float unit = t ? key_unit[1] : key_unit[0];
    small.key_unit[row] = unit;
    small.strength[row] = beta * unit;
    key_units[row] = unit * (1.0f / kRowScale);
    reinterpret_cast<float*>(record + Record::kQueryUnits)[row] =
        (t ? query_unit[1] : query_unit[0]) * (p.scale / kRowScale);
    reinterpret_cast<float*>(record + Record::kBeta)[row] = beta;
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    const int c = threadIdx.x;
    reinterpret_cast<float*>(record + Record::kTotals)[c] =
        exp2f(small.logs[0][c] + small.logs[1][c] + small.logs[2][c] + small.logs[3][c]);
  }
  call.store_rows(record);
  Sums sums = {}, pairs = {};
  call.multiply_earlier(sums, pairs);
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    if (c / 2 != block) continue;
    const auto place = [&](Sums& to, int reader) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int of = 2 * reader + e;
        to[c][e] = c % 2 ? 0.0f : near_pairs.near[0][of];
        to[c][2 + e] = c % 2 ? near_pairs.far[0][of] : near_pairs.across[of];
      }
    };
    place(sums, 0);
    place(pairs, 1);
    // A query and its own key.
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (2 * t + e == g) (c % 2 ? pairs[c][2 + e] : pairs[c][e]) = own[c % 2];
  }
  constexpr float kUnscale = 1.0f / (kRowScale * kRowScale);
  {
    const float row[2] = {query_unit[0] * (p.scale * kUnscale), query_unit[1] * (p.scale * kUnscale)};
    call.store_triangle(pairs, row, small.key_unit, record + Record::kPairs);
  }
#pragma unroll
  for (int c = 0; c < 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[c][e] *= kUnscale;
  solve_rows(sums, call.tile(Memory::kSolution),
             reinterpret_cast<float*>(memory + Memory::kScratch + block * Memory::kScratchStride), small.strength,
             small.key_unit, block, lane);
  const float row[2] = {-key_unit[0], -key_unit[1]};
  call.store_triangle(sums, row, small.key_unit, record + Record::kInverse);
  // The kernel before reads another window, so that only the end of this one must be after its own: one CTA is enough, and no other is kept.
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();
}

}  // namespace lethe::matrix_state
