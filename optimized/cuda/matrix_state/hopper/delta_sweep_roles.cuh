#pragma once
// What a CTA of delta_sweep.cuh does beside its state: a warpgroup that loads a chunk, measures its rows and finds their units, and one that prepares it.

#include "optimized/cuda/launch.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_folded.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_rows.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_shared.cuh"
#include "optimized/cuda/matrix_state/hopper/products.cuh"

namespace lethe::matrix_state {

/// Whether W and P are tiles. With 64 columns float16 finds too few registers for products by wgmma alone.
template <int kBlocks, int kGroups, bool kReads, bool kKeeps>
inline constexpr bool kSweepsByTiles = kBlocks == 2 && kGroups == 2 && kReads && !kKeeps;

/// kReads: by queries. kKeeps: states and residuals for a backward.
template <typename Element, int kBlocks, int kGroups, bool kReads, bool kKeeps>
struct DeltaSweep {
  static constexpr bool kTiles = kSweepsByTiles<kBlocks, kGroups, kReads, kKeeps>;
  using Shared = DeltaSweepShared<kBlocks, kGroups, kTiles>;
  static constexpr bool kBesideSolve = kReads;  ///< where `ready` may be given
  static constexpr bool kFolded = kReads && kFolds<Element>;  ///< whether O is read from X by A
  /// Whether those that load and find units measure V's rows, since others are busy with those of Q or K.
  static constexpr bool kMeasuresBeside = Shared::kCopiesTokens && kReads;
  const DeltaSweepArguments& p;
  char* const memory;
  const int block, lane;  ///< the warp of its warpgroup, and the lane
  const int b, h, head;
  const int tile;  ///< the first one, of 64 columns

  __device__ typename Shared::Small& small() const {
    return *reinterpret_cast<typename Shared::Small*>(memory + Shared::kSmall);
  }
  __device__ char* stage(int i) const { return memory + i * Shared::kStage; }
  __device__ SolvedChunk& solved(int i) const { return reinterpret_cast<SolvedChunk*>(memory + Shared::kSolved)[i]; }
  /// P of a chunk; of float16 first W transposed, then A. Two places are enough: chunk n is prepared when the state before chunk n − 1 is measured, so when chunk n − 2 is swept.
  __device__ uint4* pairs(int n) const {
    return reinterpret_cast<uint4*>(memory + Shared::kPairs + n % 2 * kFragments);
  }
  // The same where they are tiles, and W's, of which two are enough for the same reason.
  __device__ char* inverse_tile(int n) const { return memory + Shared::kPairs + n % 2 * kPanel; }
  __device__ char* pairs_tile(int n) const { return memory + Shared::kPairs + (2 + n % 2) * kPanel; }
  __device__ uint64_t* sent() const { return reinterpret_cast<uint64_t*>(memory + Shared::kSent); }
  /// The barriers of A, which comes after W: two in turn, as P's places. Of 64 rows memory is full: one is `stored`, which a forward does without, the other
  /// a third one of W's, which take turns by two there, too.
  __device__ uint64_t* folded(int n) const {
    if constexpr (kBlocks == 2) return reinterpret_cast<uint64_t*>(memory + Shared::kFoldedBarriers) + n % 2;
    else {
      static_assert(kGroups == 1 && Shared::kStages == 3, "as many arrivals at `stored` as there are warps, and a third barrier");
      return n % 2 ? &small().stored : &small().prepared[2];
    }
  }
  static constexpr bool kMakesFolded = kFolded && kBlocks == 2,  ///< whether barriers of A are made beside the others
      kPreparesInTurn = kFolded && kBlocks == 1;
  __device__ uint64_t* prepared(int n, int stage) const {
    return &small().prepared[kPreparesInTurn ? n % 2 : stage];
  }
  __device__ static uint32_t prepared_parity(int n, uint32_t parity) { return kPreparesInTurn ? turn(n) : parity; }
  __device__ static uint32_t turn(int n) { return static_cast<uint32_t>(n) / 2 % 2; }
  __device__ static int64_t first_of(int n) { return static_cast<int64_t>(n) * kChunk; }
  /// scale · σ and the query's unit: with tiles in a place of their own, else over what is not read again when the units are known.
  __device__ float* out_unit(int i) const {
    if constexpr (kTiles) return reinterpret_cast<float*>(memory + Shared::kOutUnits) + i * kChunk;
    else return solved(i).key_norm;
  }

  /// A warpgroup: all rows of 64 columns of the state, and O where it reads.
  __device__ __forceinline__ void sweep(int group) const {
    if constexpr (kTiles) sweep_tiles(group);
    else sweep_values(group);
  }
  __device__ __forceinline__ void sweep_values(int group) const;  // delta_sweep_values.cuh
  /// A lane's numbers of Sᵀ: of a warp's 16 columns, all rows.
  using State = float[32 * kBlocks];
  /// use(a number of the state, where it is in memory, whether it is there), of `columns` from `column`
  template <typename Use>
  __device__ __forceinline__ void each_number(State& state, int column, int columns, const Use& use) const {
#pragma unroll
    for (int i = 0; i < 32 * kBlocks; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, c = 16 * block + lane / 4 + i / 2 % 2 * 8;
      use(state[i], (int64_t{1} * head * p.rows + row) * p.columns + column + c, row < p.rows && c < columns);
    }
  }
  __device__ __forceinline__ static void scale(State& state, float factor) {
#pragma unroll
    for (int i = 0; i < 32 * kBlocks; ++i) state[i] *= factor;
  }
  /// Of the state before chunk n.
  __device__ __forceinline__ void measure(const State& state, int group, int n) const {
    publish_largest(largest_of_sums(reinterpret_cast<const float(&)[kBlocks][32]>(state)), group, n);
  }
  __device__ __forceinline__ void publish_largest(float most, int group, int n) const {
    if (lane == 0) small().largest[n % 2][group * kWarps + block] = most;
    arrive_warp(&small().measured[n % 2], lane);
  }
  /// What the largest number of a state may have lost where it is measured as float16; of larger ones kRoot of bound_of() has what that rounds off.
  static constexpr float kLostByRounding = 0x1p-24f;

  // Where W and P are tiles: delta_tiles_roles.cuh, delta_sweep_tiles.cuh
  __device__ __forceinline__ void sweep_tiles(int group) const;
  __device__ __forceinline__ void divide_keys(int half) const;
  __device__ __forceinline__ void weigh_inverse(int of, int n, const ptx::RingPosition& at) const;
  __device__ __forceinline__ void prepare_tiles() const;
  __device__ __forceinline__ void send_output(int n) const;
  __device__ __forceinline__ void release_output() const;

  /// Until a stage may be copied to. Where W is no tile it is weighed in its stage, and so are the tokens: by warps that read them again, and fence nothing.
  __device__ __forceinline__ void wait_until_empty(const ptx::RingPosition& at) const {
    ptx::mbarrier_wait(&small().empty[at.index], at.parity ^ 1);
    if constexpr (!kTiles) ptx::fence_async_shared();
  }
  /// A thread: issues the copies of chunk n's inputs to stage i, before it is solved; copy_solved() completes the bytes that `full` expects.
  __device__ __forceinline__ void copy_inputs(int n, int i) const {
    char* const to = stage(i);
    uint64_t* const full = &small().full[i];
    ptx::mbarrier_arrive_expect(full, Shared::kStage - (kReads ? 0 : Shared::kKey) + sizeof(SolvedChunk) +
                                          (Shared::kCopiesTokens ? sizeof(DeltaTokens) : 0));
    load_tile_of<kBlocks>(to + Shared::kKey, p.maps[1], p.key, full, 0, first_of(n), b, h);
    if constexpr (kReads) load_tile_of<kBlocks>(to, p.maps[0], p.query, full, 0, first_of(n), b, h);
    load_tile_of<kGroups>(to + Shared::kValue, p.maps[2], p.value, full, 64 * tile, first_of(n), b, h);
  }
  __device__ __forceinline__ void copy_solved(int n, int i) const {
    uint64_t* const full = &small().full[i];
    const int64_t chunk = int64_t{1} * head * p.chunks + n;
    ptx::load_run(&solved(i), &p.solved[chunk], sizeof(SolvedChunk), full);
    if constexpr (Shared::kCopiesTokens) ptx::load_run(&small().tokens[i], &p.tokens[chunk], sizeof(DeltaTokens), full);
  }

  /// A warp: half the rows of V in stage i.
  __device__ __forceinline__ void measure_values(int half, int i) const {
    const int row = 32 * half + lane % 16;
    const uint32_t value = ptx::shared_address(stage(i)) + Shared::kValue,
                   first = value + tile_piece(row, lane / 16 * 4);
    DeltaTokenUnits& units = small().units[i];
    const float2 largest = largest_of_rows<Element, kGroups>(first, first + kPanel / kWarps);
    units.largest_value[row] = largest.x, units.largest_value[row + 16] = largest.y;
    arrive_warp(&small().values[i], lane);
  }

  /// One warp.
  __device__ __forceinline__ void load() const {
    if constexpr (Shared::kCopiesTokens) load_solved();
    else load_and_prepare();
  }
  /// Its tiles and W when that is solved, with gates and strengths. It also measures rows of V where other warps measure those of Q.
  __device__ __forceinline__ void load_solved() const {
    if (!kBesideSolve || !p.ready) wait_for_previous_kernel();
    if constexpr (!kReads) let_next_kernel_start();  // the sweep back, which reads what the solve has left
    if (lane == 0)
      for (const CUtensorMap* map : {&p.maps[0], &p.maps[1], &p.maps[2]}) ptx::prefetch_tensor_map(map);
    int known = 0;  // chunks that are solved
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      wait_until_empty(at);
      if (lane == 0) copy_inputs(n, at.index);
      if (kBesideSolve && p.ready) wait_for_solutions(p.ready + int64_t{1} * head * p.chunks, n, p.chunks, known, lane);
      if (lane == 0) copy_solved(n, at.index);
      if constexpr (kTiles)
        if (n >= Shared::kStages) send_output(n - Shared::kStages);
      if constexpr (kMeasuresBeside) {
        ptx::mbarrier_wait(&small().full[at.index], at.parity);
        if constexpr (kTiles)
          if (n >= Shared::kStages) release_output();
        measure_values(1, at.index);
      }
    }
    if constexpr (kTiles) {
      for (int n = max(p.chunks - Shared::kStages, 0); n < p.chunks; ++n) {
        send_output(n);
        release_output();
      }
      ptx::bulk_wait<0>();
    }
    if (kBesideSolve && p.ready) end_after_previous_kernel();
  }
  /// The same, but it prepares the gates itself.
  __device__ __forceinline__ void load_and_prepare() const {
    const auto raw_of = [&](int n) {
      RawChunk raw;
      raw.load(p.gate, p.beta, p.length, b, h, first_of(n), lane);
      return raw;
    };
    RawChunk next = raw_of(0);
    if (!kBesideSolve || !p.ready) wait_for_previous_kernel();
    if constexpr (!kReads) let_next_kernel_start();  // the sweep back, which reads what the solve has left
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      if (kBesideSolve && p.ready) wait_for_solution(&p.ready[int64_t{1} * head * p.chunks + n]);
      wait_until_empty(at);
      uint64_t* const full = &small().full[at.index];
      if (lane == 0) copy_inputs(n, at.index), copy_solved(n, at.index);
      const RawChunk raw = next;
      if (n + 1 < p.chunks) next = raw_of(n + 1);
      DeltaTokens& tokens = small().tokens[at.index];
      *reinterpret_cast<float2*>(&tokens.beta[2 * lane]) = raw.beta;
      if (p.gate.log_forget || n < Shared::kStages) {
        prepare_gates(tokens.gates, raw.gates, 1.0f, 1.0f, false, lane);
      } else {
        open_gates(tokens.gates, lane);
      }
      arrive_warp(full, lane);
    }
    if (kBesideSolve && p.ready) end_after_previous_kernel();
  }

  /// A bound of the lengths of the state's columns by the largest number of chunk n's, of `unit`.
  __device__ __forceinline__ float bound_of(int n, float unit) const {
    constexpr float kRoot = kBlocks == 1 ? 8.0f : 11.5f;
    float most[4] = {};
#pragma unroll
    for (int i = 0; i < Shared::kStateWarps; ++i) most[i % 4] = fmaxf(most[i % 4], small().largest[n % 2][i]);
    return fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])) * unit * kRoot;
  }

  /// A warp: two of four blocks of rows. The values' first, where other warps don't measure them: the units are found by these.
  __device__ __forceinline__ void divide(int half) const {
    if constexpr (kTiles) return divide_keys(half);
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      DeltaTokenUnits& units = small().units[at.index];
      const uint32_t query = ptx::shared_address(stage(at.index));
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      const int row = 32 * half + lane % 16;
      if constexpr (!kMeasuresBeside) {
        const float2 of_values = measure_rows<Element>(RowPart<kGroups>(query + Shared::kValue, 2 * half, lane),
                                                       RowPart<kGroups>(query + Shared::kValue, 2 * half + 1, lane));
        units.largest_value[row] = of_values.x, units.largest_value[row + 16] = of_values.y;
        arrive_warp(&small().values[at.index], lane);
      }
      if constexpr (kReads) {
        const float2 of_queries = measure_and_divide_rows<Element>(RowPart<kBlocks>(query, 2 * half, lane),
                                                                   RowPart<kBlocks>(query, 2 * half + 1, lane));
        units.query_unit[row] = power_of_two_below(of_queries.x);
        units.query_unit[row + 16] = power_of_two_below(of_queries.y);
        ptx::fence_async_shared();
        arrive_warp(&small().rows[at.index], lane);
      }
    }
  }

  /// A warp: the units.
  __device__ __forceinline__ void weigh() const {
    float unit = 1.0f, unit_before = 1.0f;  // of the state before this chunk, and the one before it
    DeltaGrowth growth;                     // of the chunk before
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      DeltaTokens& tokens = small().tokens[at.index];
      SolvedChunk& chunk = solved(at.index);
      const int earlier = max(n - 1, 0);
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      if constexpr (kMeasuresBeside) measure_values(0, at.index);
      ptx::mbarrier_wait(&small().values[at.index], at.parity);
      const DeltaChunkGrowth own(tokens, small().units[at.index], chunk.key_norm, lane);
      if constexpr (kReads && kKeeps) keep_keys(n, chunk);
      ptx::mbarrier_wait(&small().measured[earlier % 2], earlier / 2 % 2);
      const float before = growth.after(bound_of(earlier, unit_before));
      if (n == 0) {
        unit = delta_unit(before);
        if (lane == 0) small().first_reciprocal = reciprocal_of_power(unit);
      }
      const float next = prepare_units(tokens, small().units[at.index], chunk.key_unit, chunk.key_norm,
                                       small().of_state[n % 2], out_unit(at.index), own, before, unit, p.scale,
                                       [&] {
                                         if constexpr (kTiles || !kReads) return float2{1.0f, 1.0f};  // what prepares tiles multiplies
                                         if constexpr (kReads) ptx::mbarrier_wait(&small().rows[at.index], at.parity);
                                         return own_pair(small().units[at.index].query_unit, lane);
                                       },
                                       lane);
      growth = own.whole;
      [[maybe_unused]] const float own_unit = unit;
      [[maybe_unused]] const float2 reciprocal = own_pair(tokens.reciprocal(), lane);
      unit_before = n == 0 ? 1.0f : unit;
      unit = next;
      arrive_warp(&small().weighed[at.index], lane);
      if constexpr (kKeeps) keep_units(n, own_unit, reciprocal);
    }
    if constexpr (!kReads) {  // publishes that all states and residuals are written
      wait_until_stored(small().measured, small().stored, p.chunks);
      __syncwarp();
      if (lane == 0) ptx::store_release(&p.arrays.stored[blockIdx.x], 1);
    }
  }

  /// A warpgroup: what no state enters, then weighed.
  __device__ __forceinline__ void prepare() const {
    if constexpr (kTiles) return prepare_tiles();
    const int block = static_cast<int>(threadIdx.x / 32 % kWarps);  // in a register of each thread: fewer spills
    const bool gated = p.gate.log_forget != nullptr;
    const int i0 = 16 * block + lane / 4;
    ptx::RingPosition at;
    for (int n = 0; n < p.chunks; ++n, at.advance(Shared::kStages)) {
      char* const tiles = stage(at.index);
      DeltaTokens& tokens = small().tokens[at.index];
      SolvedChunk& chunk = solved(at.index);
      ptx::mbarrier_wait(&small().full[at.index], at.parity);
      divide_rows<Element, kBlocks>(ptx::shared_address(tiles) + Shared::kKey, chunk.key_unit, block, lane);
      ptx::fence_async_shared();
      [[maybe_unused]] float sums[32];
      if constexpr (kReads) {
        ptx::mbarrier_wait(&small().rows[at.index], at.parity);
        ptx::named_barrier_sync(kPrepareBarrier, kComputing);
        ptx::undefined(sums);
        ptx::fence_registers(sums);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < kBlocks; ++i)
          issue_product<__half, ptx::Major::kK, ptx::Major::kK>(sums, tiles + i * kPanel,
                                                                tiles + Shared::kKey + i * kPanel, i > 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::fence_registers(sums);
        weigh_lower_pairs(sums, tokens.gates, gated, block, lane);
      }
      ptx::mbarrier_wait(&small().weighed[at.index], at.parity);
      if constexpr (kReads && !kFolded) {
        const uint16_t* const of_state = small().of_state[n % 2];
        const float outer[2] = {power_of(of_state[i0]), power_of(of_state[i0 + 8])};
        store_weighted<false>(pairs(n), by_tiles(sums), small().units[at.index].of_pair(), outer, block, lane);
      }
      const float* const reciprocal = tokens.reciprocal();
      const auto factor = [&](int column) {
        const float2 x = *reinterpret_cast<const float2*>(&reciprocal[column]);
        return float2{reciprocal_of_power(x.x), reciprocal_of_power(x.y)};
      };
      const auto outer = [&](int row) { return -chunk.unit[row] * reciprocal[row]; };
      weigh_triangle<false>(chunk.inverse, factor, outer, block, lane);
      arrive_warp(prepared(n, at.index), lane);
      if constexpr (kFolded) {  // while W is multiplied with
        const uint16_t* const of_state = small().of_state[n % 2];
        const float of_rows[2] = {power_of(of_state[i0]), power_of(of_state[i0 + 8])};
        scale_pairs(by_tiles(sums), small().units[at.index].of_pair(), of_rows, lane);
        transpose_triangle(pairs(n), chunk.inverse, block, lane);  // where A comes
        ptx::named_barrier_sync(kPrepareBarrier, kComputing);
        fold_blocks(by_tiles(sums), pairs(n), block, lane);
        ptx::named_barrier_sync(kPrepareBarrier, kComputing);  // all have read it
        store_folded_rows<false>(pairs(n), by_tiles(sums), block, lane);
        arrive_warp(folded(n), lane);
      }
    }
  }

  __device__ int64_t kept_tile(int n, int group) const {
    return (int64_t{1} * (tile + group) * p.all_heads + head) * p.chunks + n;
  }
  /// A warp: what the solve has found of the keys.
  __device__ __forceinline__ void keep_keys(int n, const SolvedChunk& chunk) const {
    if (tile > 0) return;
    ChunkKeys& to = p.arrays.keys[int64_t{1} * head * p.chunks + n];
    *reinterpret_cast<float2*>(&to.unit[2 * lane]) = own_pair(chunk.key_unit, lane);
    *reinterpret_cast<float2*>(&to.norm[2 * lane]) = own_pair(chunk.key_norm, lane);
  }
  /// A warp: what S before a chunk is divided by, and a lane's two tokens' rows of R, whose factors are given.
  __device__ __forceinline__ void keep_units(int n, float unit, float2 factors) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int64_t kept = kept_tile(n, i);
      reinterpret_cast<float2*>(p.arrays.residual_unit + kept * kChunk)[lane] = {reciprocal_of_power(factors.x),
                                                                                 reciprocal_of_power(factors.y)};
      if (lane == 0) p.arrays.before_unit[kept] = unit;
    }
  }
};

}  // namespace lethe::matrix_state
