#pragma once
// The delta rule's gradients from the last token back by wgmma, for a state of at most 128 rows: a CTA sweeps a head and kGroups times 64 columns of the
// gradient R of the state, in chunks of 64 tokens.
//
//   dN = scale · Pᵀ dO + (D_C ∘ K) R      dN̄ = dN − Wᵀ (β ∘ dN)      dV = β ∘ dN̄
//   R ← γ_C R + scale · (γ ∘ Q)ᵀ dO − (γ ∘ K)ᵀ dV
//
// dN is the gradient of what is written where later tokens of the chunk keep theirs, dN̄ the whole one, which delta_gradients.cuh reads.
//
//   warp 0         tiles of a chunk, its Wᵀ, its gates and strengths                                     → full
//   warps 2, 3     make the rows of Q and dO float16                                                     → rows
//   warp 1         units                                                                                 → weighed
//   warpgroup 1    makes the rows of K float16; Pᵀ = K Qᵀ; weights Pᵀ, Wᵀ and Q by units                 → prepared
//   warpgroup 2…   R, rounded, to shared memory; the equations                                           → measured, empty
//
// All that becomes float16 is divided by the units of delta_back_units.cuh. What dV's rows are multiplied with lies over the rounded R, and dV where that has
// two blocks over dO: a stage is empty there when dV has left, during the next chunk.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/delta_state.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_back_shared.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_rows.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

template <typename Element, int kBlocks, int kGroups>
struct DeltaBackSweep {
  using Shared = DeltaBackShared<kBlocks, kGroups>;
  using Solved = typename Shared::Solved;
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
  /// Pᵀ of a chunk, in two places as in delta_sweep.cuh.
  __device__ uint4* pairs(int n) const {
    return reinterpret_cast<uint4*>(memory + Shared::kPairs + n % 2 * kFragments);
  }
  /// The n-th chunk's place in time, its first token, and its and a tile's place in arrays.
  __device__ int chunk_of(int n) const { return p.chunks - 1 - n; }
  __device__ int64_t first_of(int n) const { return static_cast<int64_t>(chunk_of(n)) * kChunk; }
  __device__ int64_t kept(int n) const { return int64_t{1} * head * p.chunks + chunk_of(n); }
  __device__ int64_t kept_tile(int n, int group) const {
    return int64_t{1} * (tile + group) * p.all_heads * p.chunks + kept(n);
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
        ptx::load_run(chunk.inverse, p.arrays.inverse + kept(n) * (kLowerBlocks * 32), kFragments, full);
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
      float sums[32];
      ptx::undefined(sums);
      ptx::fence_registers(sums);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        issue_product<__half, ptx::Major::kK, ptx::Major::kK>(sums, key + i * kPanel, queries + i * kPanel, i > 0);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::fence_registers(sums);
      weigh_later_pairs(sums, tokens.gates, gated, block, lane);
      ptx::mbarrier_wait(&small().weighed[at.index], at.parity);
      const auto factor = [&](int column) { return *reinterpret_cast<const float2*>(&units.of_written[column]); };
      const float outer[2] = {units.of_row[j0], units.of_row[j0 + 8]};
      store_weighted<true>(pairs(n), by_tiles(sums), units.of_column, outer, block, lane);
      weigh_triangle<true>(chunk.inverse, factor, [&](int row) { return units.of_row[row]; }, block, lane);
      ptx::named_barrier_sync(kPrepareBarrier, kComputing);  // all have multiplied with Q
      weigh_rows(ptx::shared_address(queries), units.of_read);
      ptx::fence_async_shared();
      arrive_warp(&small().prepared[at.index], lane);
    }
  }

  /// This warp's rows of float16 times factors.
  __device__ __forceinline__ void weigh_rows(uint32_t rows, const float* factors) const {
    const RowPart<kBlocks> part(rows, block, lane);
    uint4 pieces[4 * kBlocks];
    load_row(pieces, part);
    store_row<__half>(pieces, part, factors[part.row]);
  }

  /// A warpgroup: all rows of 64 columns of R.
  __device__ __forceinline__ void sweep(int group) const {
    using ptx::Major;
    const Place place{block, lane};
    const int i0 = 16 * block + lane / 4, column = 64 * (tile + group), columns = min(64, p.columns - column);
    const auto place_of = [&](int row, int c) { return (int64_t{1} * head * p.rows + row) * p.columns + column + c; };
    char* const rounded = memory + Shared::kState + group * kBlocks * kPanel;
    char* const rows = memory + Shared::kRows + group * kPanel;
    const auto sync = [&] { ptx::named_barrier_sync(kStateBarrier + group, kComputing); };

    DeltaState<64 * kBlocks> state;  // divided by units that prepare() knows
    state.load(p.initial, p.rows, columns, place_of, block, lane);
    const auto sums_of = [&](int m) -> float(&)[32] { return reinterpret_cast<float(&)[32]>(state.x[m]); };
    const auto fence_state = [&] {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) ptx::fence_registers(sums_of(m));
    };
    const auto scale_state = [&](float factor) {
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) scale_rows(sums_of(m), factor, factor);
    };
    // Of R after the n-th chunk.
    const auto measure = [&](int n) {
      const float most = largest_of_sums(reinterpret_cast<const float(&)[kBlocks][32]>(state.x));
      if (lane == 0) small().largest[n % 2][group * kWarps + block] = most;
      arrive_warp(&small().measured[n % 2], lane);
    };
    const auto put = [&](char* to, const float(&sums)[32]) {
      uint32_t packed[16];
      pack_sums<__half>(packed, sums, 1.0f);
      store_packed(ptx::shared_address(to), packed, place);
    };
    measure(0);
    float unit = 1.0f;  // of R
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      DeltaBackTokens& tokens = small().tokens[at.index];
      char* const query = stage(at.index);
      const char* const key = keys(n);
      char* const gradient = query + Shared::kGradient + group * kPanel;
      char* const result = Shared::kEarly ? memory + Shared::kResult + group * kPanel : gradient;
      if (n == 0) {
        ptx::mbarrier_wait(&small().prepared[0], 0);
        scale_state(small().first_reciprocal);
        unit = reciprocal_of_power(small().first_reciprocal);
      }
#pragma unroll
      for (int m = 0; m < kBlocks; ++m) put(rounded + m * kPanel, sums_of(m));
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      ptx::mbarrier_wait(&small().prepared[at.index], at.parity);
      uint32_t left[16];
      load_blocks(left, pairs(n), block, lane);
      scale_state(small().decay[at.index]);
      ptx::fence_async_shared();
      sync();
      // K R and Pᵀ dO, and what the queries add to R.
      float x[32], y[32];
      ptx::undefined(x);
      ptx::undefined(y);
      ptx::fence_registers(x);
      ptx::fence_registers(y);
      ptx::fence_registers(left);
      fence_state();
      ptx::wgmma_fence();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        issue_product<__half, Major::kK, Major::kMN>(x, key + m * kPanel, rounded + m * kPanel, m > 0);
      issue_product<__half, Major::kMN>(y, left, gradient, false);
      ptx::wgmma_commit();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        issue_product<__half, Major::kMN, Major::kMN>(sums_of(m), query + m * kPanel, gradient, true);
      ptx::wgmma_commit();
      keep_state(n, group, rounded, unit);
      unit = small().next[at.index];
      const float read[2] = {tokens.read_key()[i0], tokens.read_key()[i0 + 8]};
      ptx::wgmma_wait<1>();
      ptx::fence_registers(x);
      ptx::fence_registers(y);
      ptx::fence_registers(left);
#pragma unroll
      for (int i = 0; i < 32; ++i) x[i] = fmaf(read[i / 2 % 2], x[i], y[i]);
      if (arrives(lane)) {
        ptx::bulk_wait_read<1>();  // dN̄ and dV of the chunk before have left; this chunk's R may still be read
        if (!Shared::kEarly && n > 0)
          ptx::mbarrier_arrive(&small().empty[at.index == 0 ? Shared::kStages - 1 : at.index - 1]);
      }
      __syncwarp();
      put(rows, x);
      load_blocks(left, solved(at.index).inverse, block, lane);
      ptx::fence_async_shared();
      sync();
      ptx::fence_registers(x);
      ptx::fence_registers(left);
      ptx::wgmma_fence();
      issue_product<__half, Major::kMN>(x, left, rows, true);
      ptx::wgmma_commit();
      const float write[2] = {tokens.write()[i0], tokens.write()[i0 + 8]},
                  strength[2] = {tokens.strength()[i0], tokens.strength()[i0 + 8]};
      ptx::wgmma_wait<0>();
      ptx::fence_registers(x);
      ptx::fence_registers(left);
      fence_state();
      if constexpr (Shared::kEarly) arrive_warp(&small().empty[at.index], lane);
      wait_for_stores(lane);  // the rounded R has left
      {
        float weighted[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) weighted[i] = x[i] * write[i / 2 % 2];
        put(rounded, weighted);
      }
      ptx::fence_async_shared();
      sync();  // dV's weighted rows are there, and dN's are read
      fence_state();
      ptx::wgmma_fence();
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        issue_product<__half, Major::kMN, Major::kMN>(sums_of(m), key + m * kPanel, rounded, true);
      ptx::wgmma_commit();
      put(rows, x);
      scale_rows(x, strength[0], strength[1]);
      uint32_t packed[16];
      pack_sums<Element>(packed, x, 1.0f);
      store_rows_by_map(result, packed, p.maps[3], column, first_of(n), b, h, place);
      store_images<1>(p.arrays.written + kept_tile(n, group) * (kPanel / 16), rows, block, lane);
      ptx::wgmma_wait<0>();
      fence_state();
      if (lane == 0) ptx::bulk_wait<3>();  // what the chunk before has stored is there
      measure(n + 1);
      sync();  // all products have ended
    }
    if (lane == 0) ptx::bulk_wait<0>();
    arrive_warp(&small().stored, lane);
    if (p.last) {
      scale_state(unit);
      state.store(p.last, p.rows, columns, place_of, block, lane);
    }
  }

  /// This warp's rows of R after a chunk, and what it is divided by.
  __device__ __forceinline__ void keep_state(int n, int group, const char* rounded, float unit) const {
    const int64_t to = kept_tile(n, group);
    store_images<kBlocks>(p.arrays.after + to * (kBlocks * kPanel / 16), rounded, block, lane);
    if (threadIdx.x % kComputing == 0) p.arrays.after_unit[to] = unit;
  }
};

template <typename Element, int kBlocks, int kGroups>
__global__ void __launch_bounds__(DeltaBackShared<kBlocks, kGroups>::kThreads,
                                  DeltaBackShared<kBlocks, kGroups>::kTogether)
    delta_back_sweep(const __grid_constant__ DeltaSweepArguments p) {
  using Shared = DeltaBackShared<kBlocks, kGroups>;
  extern __shared__ __align__(1024) char memory[];
  const int warp = ptx::in_uniform_register(threadIdx.x / 32), ctas = delta_ctas(p.columns, kGroups),
            head = static_cast<int>(blockIdx.x) / ctas;
  const DeltaBackSweep<Element, kBlocks, kGroups> call{p,
                                                       memory,
                                                       warp % kWarps,
                                                       static_cast<int>(threadIdx.x % 32),
                                                       head / p.heads,
                                                       head % p.heads,
                                                       head,
                                                       static_cast<int>(blockIdx.x) % ctas * kGroups};
  run_roles<Shared>(call, warp / kWarps);
}

}  // namespace lethe::matrix_state
