#pragma once
// What a CTA of delta_back_sweep.cuh does beside its R: a warpgroup that loads a chunk, measures its rows and finds their units, and one that prepares it.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_state.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_back_shared.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_folded.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_rows.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

template <typename Element, int kBlocks, int kGroups>
struct DeltaBackSweep {
  using Shared = DeltaBackShared<kBlocks, kGroups>;
  using Solved = typename Shared::Solved;
  static constexpr bool kMakesFolded = kFolds<Element>;  ///< whether barriers of A are made
  const DeltaSweepArguments& p;
  char* const memory;
  const int block, lane;  ///< the warp of its warpgroup, and the lane
  const int b, h, head;
  const int tile;  ///< the first one, of 64 columns

  __device__ typename Shared::Small& small() const {
    return *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  }
  __device__ char* stage(int i) const { return memory + i * Shared::kStage; }
  __device__ char* keys(int n) const { return memory + Shared::kKeys + n % Shared::kKeyStages * Shared::kTile; }
  __device__ Solved& solved(int i) const { return reinterpret_cast<Solved*>(memory + Shared::kSolved)[i]; }
  /// Pᵀ of a chunk, in two places as in delta_sweep_roles.cuh; of float16 first what rounding leaves of Wᵀ, then Aᵀ.
  __device__ uint4* pairs(int n) const {
    return reinterpret_cast<uint4*>(memory + Shared::kPairs + n % 2 * kFragments);
  }
  __device__ uint64_t* folded(int n) const { return &small().folded[n % 2]; }
  /// The n-th chunk's place in time, its first token, and its and a tile's place in arrays.
  __device__ int chunk_of(int n) const { return p.chunks - 1 - n; }
  __device__ int64_t first_of(int n) const { return static_cast<int64_t>(chunk_of(n)) * kChunk; }
  __device__ int64_t kept(int n) const { return int64_t{1} * head * p.chunks + chunk_of(n); }
  __device__ int64_t kept_tile(int n, int group) const {
    return int64_t{1} * (tile + group) * p.all_heads * p.chunks + kept(n);
  }

  __device__ const uint4* inverse_of(int n) const {
    return p.arrays.inverse + kept(n) * (kInverseParts<Element> * kLowerBlocks * 32);
  }

  /// One warp.
  __device__ __forceinline__ void load() const {
    const auto raw_of = [&](int n) {
      RawChunk raw;
      raw.load(p.gate, p.beta, p.length, b, h, first_of(n), lane);
      return raw;
    };
    RawChunk next = raw_of(0);
    // The solve has ended: the sweep between has waited for it before it let this one start, and leaves nothing that is read here. What a forward has left is
    // there, and the next kernel is to find no mark of an earlier call.
    if (!p.arrays.stored) {
      if (lane == 0) p.arrays.swept[blockIdx.x] = 0;
      __threadfence();
      __syncwarp();
    }
    let_next_kernel_start();  // the gradients, which wait for each chunk of each head
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      ptx::mbarrier_wait(&small().empty[at.index], at.parity ^ 1);
      uint64_t* const full = &small().full[at.index];
      if (lane == 0) {
        char* const to = stage(at.index);
        const int first = static_cast<int>(first_of(n));
        ptx::mbarrier_arrive_expect(full, Shared::kStage + Shared::kTile + sizeof(Solved));
        load_tile_of<kBlocks>(keys(n), p.maps[1], p.key, full, 0, first, b, h);
        load_tile_of<kBlocks>(to, p.maps[0], p.query, full, 0, first, b, h);
        load_tile_of<kGroups>(to + Shared::kGradient, p.maps[2], p.value, full, 64 * tile, first, b, h);
        Solved& chunk = solved(at.index);
        ptx::load_run(chunk.inverse, inverse_of(n), kFragments, full);
        ptx::load_run(chunk.key_unit, p.chunk_keys + kept(n) * p.keys_stride, sizeof(ChunkKeys), full);
      }
      const RawChunk raw = next;
      if (n + 1 < p.chunks) next = raw_of(n + 1);
      DeltaBackTokens& tokens = small().tokens[at.index];
      *reinterpret_cast<float2*>(&tokens.beta[2 * lane]) = raw.beta;
      if (p.gate.log_forget || n < Shared::kStages) {
        prepare_gates(tokens.gates, raw.gates, 1.0f, 1.0f, false, lane);
      } else {
        open_gates(tokens.gates, lane);
      }
      arrive_warp(full, lane);
    }
    end_after_previous_kernel();
  }

  /// A bound of the lengths of R's columns by the largest number after chunk n, of `unit`.
  __device__ __forceinline__ float bound_of(int n, float unit) const {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < Shared::kStateWarps; ++i) most = fmaxf(most, small().largest[n % 2][i]);
    return most * unit * kRoot;
  }
  static constexpr float kRoot = kBlocks == 1 ? 8.0f : 11.5f;

  /// A warp: two of four blocks of rows.
  __device__ __forceinline__ void divide(int half) const {
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      DeltaBackRows& rows = small().row_units[at.index];
      const uint32_t query = ptx::shared_address(stage(at.index));
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      const uint32_t gradient = query + Shared::kGradient;
      if constexpr (kBlocks == 1) {
        const int row = 32 * half + lane % 16;
        const float2 of_queries = measure_and_divide_rows<Element>(RowPart<kBlocks>(query, 2 * half, lane),
                                                                   RowPart<kBlocks>(query, 2 * half + 1, lane));
        rows.largest_query[row] = of_queries.x, rows.largest_query[row + 16] = of_queries.y;
        const float2 of_gradients = measure_and_divide_rows<Element>(RowPart<kGroups>(gradient, 2 * half, lane),
                                                                     RowPart<kGroups>(gradient, 2 * half + 1, lane));
        rows.largest_gradient[row] = of_gradients.x, rows.largest_gradient[row + 16] = of_gradients.y;
      } else {  // two rows at once are faster, but too many instructions for the cache beside those of the other warps
#pragma unroll 1
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          const int row = 16 * i + lane % 16;
          rows.largest_query[row] = measure_and_divide_row<Element>(RowPart<kBlocks>(query, i, lane));
          rows.largest_gradient[row] = measure_and_divide_row<Element>(RowPart<kGroups>(gradient, i, lane));
        }
      }
      ptx::fence_async_shared();
      arrive_warp(&small().rows[at.index], lane);
    }
  }

  /// A warp: the units.
  __device__ __forceinline__ void weigh() const {
    float unit = 1.0f, unit_before = 1.0f;  // of R after this chunk, and after the one that was swept before it
    DeltaGrowth growth;                     // of the chunk before
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      DeltaBackTokens& tokens = small().tokens[at.index];
      const Solved& chunk = solved(at.index);
      const int earlier = max(n - 1, 0);
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      ptx::mbarrier_wait(&small().rows[at.index], at.parity);
      const DeltaBackGrowth own(tokens, small().row_units[at.index], chunk.key_norm, p.scale, kRoot, lane);
      ptx::mbarrier_wait(&small().measured[earlier % 2], earlier / 2 % 2);
      const float before = growth.after(bound_of(earlier, unit_before));
      if (n == 0) {
        unit = delta_unit(before);
        if (lane == 0) small().first_reciprocal = reciprocal_of_power(unit);
      }
      const auto keep = [&](int token, float2 units) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i)
          if (64 * (tile + i) < p.columns)
            *reinterpret_cast<float2*>(p.arrays.written_unit + kept_tile(n, i) * kChunk + token) = units;
      };
      const float next = prepare_back_units(tokens, small().row_units[at.index], small().units[n % 2], chunk.key_unit,
                                            chunk.key_norm, own, before, unit, p.scale, kRoot, keep, lane);
      growth = own.whole;
      if (lane == 0) {
        small().decay[at.index] = tokens.gates.total * unit * reciprocal_of_power(next);
        small().next[at.index] = next;
      }
      unit_before = n == 0 ? 1.0f : unit;
      unit = next;
      arrive_warp(&small().weighed[at.index], lane);
      if (n > 2) publish(n - 2);  // of which all has been written when R after n − 1 chunks was measured
    }
    wait_until_stored(small().measured, small().stored, p.chunks);
    publish(p.chunks);
  }
  /// Of arrays that delta_gradients.cuh reads those of so many chunks are written.
  __device__ __forceinline__ void publish(int chunks) const {
    __syncwarp();
    if (lane == 0) ptx::store_release(&p.arrays.swept[blockIdx.x], chunks);
  }

  /// A warpgroup: what no R enters, then weighed.
  __device__ __forceinline__ void prepare() const {
    const int block = static_cast<int>(threadIdx.x / 32 % kWarps);  // in a register of each thread: fewer spills
    const bool gated = p.gate.log_forget != nullptr;
    const int j0 = 16 * block + lane / 4;
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      char *const queries = stage(at.index), *const key = keys(n);
      const DeltaBackTokens& tokens = small().tokens[at.index];
      const DeltaBackUnits& units = small().units[n % 2];
      Solved& chunk = solved(at.index);
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      divide_rows<Element, kBlocks>(ptx::shared_address(key), chunk.key_unit, block, lane);
      ptx::fence_async_shared();
      ptx::mbarrier_wait(&small().rows[at.index], at.parity);
      ptx::named_barrier_sync(kPrepareBarrier, kComputing);
      uint4 low[3];
      if constexpr (kFolds<Element>) load_low_parts(low, inverse_of(n) + kLowerBlocks * 32, block, lane);
      float sums[32];
      ptx::undefined(sums);
      ptx::fence_registers(sums);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if constexpr (kFolds<Element>)
          issue_product<__half, ptx::Major::kK, ptx::Major::kK>(sums, queries + i * kPanel, key + i * kPanel, i > 0);
        else issue_product<__half, ptx::Major::kK, ptx::Major::kK>(sums, key + i * kPanel, queries + i * kPanel, i > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(sums);
      if constexpr (kFolds<Element>) weigh_lower_pairs(sums, tokens.gates, gated, block, lane);
      else weigh_later_pairs(sums, tokens.gates, gated, block, lane);
      ptx::mbarrier_wait(&small().weighed[at.index], at.parity);
      const auto factor = [&](int column) { return *reinterpret_cast<const float2*>(&units.of_written[column]); };
      const auto outer_of = [&](int row) { return units.of_row[row]; };
      if constexpr (kFolds<Element>) {  // a warp's rows are of queries; what rounding leaves of Wᵀ lies where A comes
        const float outer[2] = {units.of_column[j0], units.of_column[j0 + 8]};
        weigh_parts(chunk.inverse, pairs(n), low, factor, outer_of, block, lane);
        ptx::named_barrier_sync(kPrepareBarrier, kComputing);  // Wᵀ is there, and all have multiplied with Q
        weigh_rows(ptx::shared_address(queries), units.of_read);
        ptx::fence_async_shared();
        arrive_warp(&small().prepared[at.index], lane);
        scale_pairs(by_tiles(sums), units.of_row, outer, lane);
        fold_parts(by_tiles(sums), chunk.inverse, pairs(n), block, lane);
        ptx::named_barrier_sync(kPrepareBarrier, kComputing);  // its low part has been read
        store_folded_rows<true>(pairs(n), by_tiles(sums), block, lane);
        arrive_warp(folded(n), lane);
      } else {
        const float outer[2] = {units.of_row[j0], units.of_row[j0 + 8]};
        store_weighted<true>(pairs(n), by_tiles(sums), units.of_column, outer, block, lane);
        weigh_triangle<true>(chunk.inverse, factor, outer_of, block, lane);
        ptx::named_barrier_sync(kPrepareBarrier, kComputing);  // all have multiplied with Q
        weigh_rows(ptx::shared_address(queries), units.of_read);
        ptx::fence_async_shared();
        arrive_warp(&small().prepared[at.index], lane);
      }
    }
  }

  /// This warp's rows of float16 times factors.
  __device__ __forceinline__ void weigh_rows(uint32_t rows, const float* factors) const {
    const RowPart<kBlocks> part(rows, block, lane);
    uint4 pieces[4 * kBlocks];
    load_row(pieces, part);
    store_row<__half>(pieces, part, factors[part.row]);
  }

  __device__ __forceinline__ void sweep(int group) const;  // delta_back_sweep.cuh
  __device__ __forceinline__ void keep_state(int n, int group, const char* rounded, float unit) const;
};

}  // namespace lethe::matrix_state
