#pragma once
// Of a chunk of 64 tokens all that the state does not enter (delta_keys.hpp), four warps a chunk, a warp 16 tokens.
//
// Halving, as in vector_sweep.cuh: of i > j let 2n be the smallest aligned run of tokens that has both. The gates between them are those from j to
// the middle of the run, times those from the middle to i: products of gates, of which none is divided by, so that 0 is 0 and 1 is 1. Within
// 16 tokens a lane's rows of a left and of a right operand are the same, so that both are made in its registers, from the factors of
// delta_keys_factors.cuh. A lane has eight successive channels of 32: which channels meet in which product is no matter.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_keys_tokens.cuh"
#include "optimized/cuda/matrix_state/delta_solution.cuh"

namespace lethe::matrix_state {

/// Four warps of a CTA that has kGroups times as many.
template <typename Element, int kRows, int kGroups>
struct DeltaKeyPreparation {
  using Block = DeltaKeyBlock<Element, kRows>;
  using Memory = typename Block::Memory;
  using Record = DeltaKeyRecord<kRows>;
  const DeltaKeyArguments& p;
  char* const memory;  ///< the group's
  const int group, warp, lane;

  /// Turns of the group among those of all CTAs, of the first p.shared chunks.
  __device__ __forceinline__ int shared_turns() const {
    const int ctas = static_cast<int>(gridDim.x), place = group * ctas + static_cast<int>(blockIdx.x);
    return place < p.shared ? (p.shared - 1 - place) / (kGroups * ctas) + 1 : 0;
  }
  /// The group's next chunk but `turn`, chunk · heads + head; next ones are those of next CTAs. p.items or more: it has none. `shared`: its shared
  /// turns.
  __device__ __forceinline__ int item_of(int turn, int shared) const {
    const int ctas = static_cast<int>(gridDim.x), cta = static_cast<int>(blockIdx.x);
    return turn < shared     ? group * ctas + cta + turn * kGroups * ctas
           : cta < p.staying ? p.shared + group * p.staying + cta + (turn - shared) * kGroups * p.staying
                             : p.items;
  }

  __device__ __forceinline__ void meet() const { ptx::named_barrier_sync(kPrepareBarrier + 3 * group, kComputing); }
  /// Where a record is, of chunk and head.
  __device__ __forceinline__ int place_of(int head, int chunk) const { return head * p.stride + chunk; }

  /// All chunks of the group, and publishes which are there.
  __device__ __forceinline__ void run() const {
    const int shared = shared_turns();
    for (int turn = threadIdx.x % kComputing, item; (item = item_of(turn, shared)) < p.items; turn += kComputing)
      p.prepared[place_of(item % p.all_heads, item / p.all_heads)] = 0;
    __threadfence();
    __syncthreads();
    let_next_kernel_start();  // it finds no number of an earlier call
    int before = -1, item = item_of(0, shared);
    if (item < p.items) {
      Place at(*this, item);
      int room = warp;  // the block whose places the warp's rows come to
      block_of(at).bring_rows(places_of(room));
#pragma unroll 1
      for (int turn = 1; item < p.items; ++turn) {
        const int next_item = item_of(turn, shared);
        const Place next(*this, next_item < p.items ? next_item : item);
        before = prepare(at, room, next, next_item < p.items, before);
        room = at.block;
        at = next;
        item = next_item;
      }
    }
    finish(before, warp == 0);
  }
  /// The group's tiles are read no more, and the record that it has stored, at `place`, is published by one warp; before its first one: −1, nothing.
  __device__ __forceinline__ void finish(int place, bool publishes) const {
    meet();
    if (publishes && lane == 0 && place >= 0) ptx::store_release(&p.prepared[place], 1);
  }

  /// A warp's 16 tokens of a chunk.
  struct Place {
    int chunk, head, block;

    __device__ __forceinline__ Place(const DeltaKeyPreparation& call, int item)
        : chunk(static_cast<unsigned>(item) / static_cast<unsigned>(call.p.all_heads)),
          head(item - chunk * call.p.all_heads),
          // Warps have their blocks in turn: the last block, which has most to do, is not always on the same scheduler.
          block(__shfl_sync(kAllLanes, (call.warp + head + chunk) % kWarps, 0)) {}
  };
  /// Its block; and one for the places in shared memory alone.
  __device__ __forceinline__ Block block_of(const Place& at) const {
    const int batch = static_cast<unsigned>(at.head) / static_cast<unsigned>(p.heads);
    return {p,
            memory,
            at.block,
            lane,
            batch,
            at.head - batch * p.heads,
            (p.first_chunk + static_cast<int64_t>(at.chunk)) * kChunk + 16 * at.block};
  }
  __device__ __forceinline__ Block places_of(int block) const { return {p, memory, block, lane, 0, 0, 0}; }

  /// Returns the record's place.
  ///
  /// reads  room: the block to whose places the rows come; next: the rows that are brought meanwhile, if `more`; before: the place of the record
  ///        before it
  __device__ __forceinline__ int prepare(const Place& at, int room, const Place& next, bool more, int before) const {
    const Block call = block_of(at);
    const int block = at.block, place = place_of(at.head, at.chunk), g = lane / 4, t = lane % 4, i0 = 16 * block + g;
    const int64_t b = call.b, h = call.h, first = call.first - 16 * block;
    auto& small = call.small();
    char* const record = p.records + int64_t{1} * place * Record::kBytes;
    float* const key_units = reinterpret_cast<float*>(record + Record::kKeyUnits);

    const float* gate = call.first_gate();
    call.prefetch_gates();
    // Of a token of each of the first two lanes of four: row g or g + 8.
    const int64_t beta_token = first + i0 + 8 * (t % 2);
    const float beta_inside = load_global(p.beta.log_forget + b * p.beta.batch_stride +
                                          min(beta_token, p.length - 1) * p.beta.token_stride + h * p.beta.head_stride),
                beta = beta_token < p.length ? beta_inside : 0.0f;
    typename Block::Pairs near_pairs;
    float key_unit[2], query_unit[2];
    DeltaKeyFactors::Logs gates;
    const DeltaKeyFactors factors = call.factors();
    {
      typename Block::Rows keys, queries;
      call.load_gates(gates, gate, 0);
      ptx::copies_wait<0>();
      const Block from = places_of(room);
      from.load_rows(keys, 1);
      from.load_rows(queries, 0);
      // The first block's warp, which has least to do, waits until what all have stored is seen.
      if constexpr (kGroups > 1) finish(before, block == 0);
      else __syncwarp();  // where rows were is written next
      factors.begin();
      call.divide(keys, Memory::kReadKey, key_unit);
      call.divide(queries, 0, query_unit);
    }
#pragma unroll 1
    for (int s = 0; s < Block::kSteps; ++s) {
      call.store_factors(factors, gates, s);
      gate += 32;
      if (s + 1 < Block::kSteps) call.load_gates(gates, gate, s + 1);
      __syncwarp();
      call.halve(factors, s, near_pairs);
      __syncwarp();
    }
    near_pairs.select(g, t);
    if (t < 2) {
      const int row = i0 + 8 * t;
      const float unit = t ? key_unit[1] : key_unit[0];
      small.key_unit[row] = unit;
      small.factor[row] = -(beta * unit) * unit;
      key_units[row] = unit * (1.0f / kRowScale);
      reinterpret_cast<float*>(record + Record::kQueryUnits)[row] =
          (t ? query_unit[1] : query_unit[0]) * (p.scale / kRowScale);
      reinterpret_cast<float*>(record + Record::kBeta)[row] = beta;
    }
    meet();
    if (threadIdx.x % kComputing < kRows) {
      const int c = threadIdx.x % kComputing;
      reinterpret_cast<float*>(record + Record::kTotals)[c] =
          small.totals[0][c] * small.totals[1][c] * small.totals[2][c] * small.totals[3][c];
    }
    call.store_rows(record);
    __syncwarp();  // where the first block's rows were is solved next
    Sums sums = {}, pairs = {};
    call.multiply_earlier(sums, pairs);
    __syncwarp();  // and where the others' were, which are read until here
    if (more) block_of(next).bring_rows(call);
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
        if (2 * t + e == g) (c % 2 ? pairs[c][2 + e] : pairs[c][e]) = near_pairs.own[c % 2][2 * (c % 2) + e];
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
               reinterpret_cast<float*>(memory + Memory::kScratch + block * Memory::kScratchStride),
               NegativeFactors{small.factor}, block, lane, 3 * group);
    const float row[2] = {-key_unit[0], -key_unit[1]};
    call.store_triangle(sums, row, small.key_unit, record + Record::kInverse);
    return place;
  }
};

/// Three chunks at once a multiprocessor (128 rows in 163 KB of shared memory: two). With kGroups 1 a CTA prepares one, and begins wherever a sweep
/// leaves room; with 3 a CTA has the multiprocessor and prepares one after the other.
template <typename Element, int kRows, int kGroups>
__global__ void __launch_bounds__(kGroups* kComputing, 3 / kGroups)
    prepare_delta_keys(const __grid_constant__ DeltaKeyArguments p) {
  extern __shared__ __align__(1024) char memory[];
  const int warp = __shfl_sync(kAllLanes, threadIdx.x / 32, 0), group = kGroups == 1 ? 0 : warp / kWarps;
  const DeltaKeyPreparation<Element, kRows, kGroups> call{p, memory + group * DeltaKeyMemory<kRows>::kStride, group,
                                                          warp % kWarps, static_cast<int>(threadIdx.x % 32)};
  if constexpr (kGroups > 1) return call.run();
  let_next_kernel_start();
  const typename DeltaKeyPreparation<Element, kRows, kGroups>::Place at(call, static_cast<int>(blockIdx.x));
  call.block_of(at).bring_rows(call.block_of(at));
  call.prepare(at, at.block, at, false, -1);
  // The kernel before reads another window, so that only the end of this one must be after its own: one CTA is enough, and no other is kept.
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();
}

}  // namespace lethe::matrix_state
