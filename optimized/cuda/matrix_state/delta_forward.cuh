#pragma once
// The delta rule forwards, a CTA a head and 64 columns of its state, in chunks of 64 tokens. With γ_i the gates from the chunk's beginning to token i
// and D_ij those that separate i and j:
//
//   X = V − γ ∘ K S       W = (I + G β)⁻¹ G,  G_ij = D_ij k_i·k_j below the diagonal
//   R = X − W (β ∘ X)     N = β ∘ R
//   O = scale · (γ ∘ Q S + P N),  P_ij = D_ij q_i·k_j up to the diagonal          S ← γ_C S + (D_C ∘ K)ᵀ N
//
// Four warps hold the state and compute these lines. The other four prepare the next chunk: they bring its tiles, make its rows float16, and compute
// P and W (delta_solution.cuh).

#include "optimized/cuda/matrix_state/delta_solution.cuh"
#include "optimized/cuda/matrix_state/delta_state.cuh"

namespace lethe::matrix_state {

/// Of each token of a chunk, what the state's warps multiply with.
struct alignas(16) DeltaForwardRows {
  float read_key[kChunk];      ///< γ, and the key's unit
  float read_query[kChunk];    ///< γ, and the query's unit
  float inverse_unit[kChunk];  ///< of W's rows
  float pair_unit[kChunk];     ///< of P's rows; until they are there, of the queries
  float write[kChunk];         ///< D_C, and the key's unit
  float beta[kChunk];
  float total;  ///< γ_C
};

struct DeltaForwardShared {
  DeltaForwardRows rows[2];
  alignas(16) ChunkGates gates;
  alignas(16) float key_unit[kChunk];
  float strength[kChunk];  ///< β times the key's unit
  float factor[kChunk];    ///< units of X's rows, then of N's
  float largest[kWarps];
};

template <int kRows>
struct DeltaForwardMemory {
  static constexpr int kTile = kRows / 64 * kPanel, kKey = kTile, kValue = 2 * kTile, kStage = 2 * kTile + kPanel;
  static constexpr int kStages = kDeltaStages, kPairs = kStages * kStage, kInverse = kPairs + 2 * kFragments,
                       kState = kInverse + 2 * kFragments, kSolution = kState + kTile, kOthers = kSolution + kPanel;
  static constexpr int kBytes = kOthers + sizeof(DeltaForwardShared);
};

template <typename Element, int kRows, bool kKeeps>
__global__ void __launch_bounds__(kDeltaThreads, kRows == 64 ? 2 : 1)
    delta_chunks(const __grid_constant__ DeltaArguments p) {
#if __CUDA_ARCH__ < 900  // where the kernels of wgmma run instead
  using Memory = DeltaForwardMemory<kRows>;
  constexpr int kPanels = kRows / 64, kStages = Memory::kStages;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t base = ptx::shared_address(memory);
  auto& shared = *reinterpret_cast<DeltaForwardShared*>(memory + Memory::kOthers);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = warp % kWarps, g = lane / 4, t = lane % 4;
  const bool prepares = warp >= kWarps;
  const int ctas = delta_ctas(p.columns, 1), tile = blockIdx.x % ctas, column = 64 * tile,
            columns = min(64, p.columns - column);
  const int64_t head = blockIdx.x / ctas, b = head / p.heads, h = head % p.heads;
  const int chunks = static_cast<int>((p.length + kChunk - 1) / kChunk);
  const auto index_of = [&](int n) { return head * chunks + n; };
  const auto tile_index_of = [&](int n) {
    return static_cast<int64_t>(tile) * p.batch * p.heads * chunks + index_of(n);
  };
  const auto stage_of = [&](int n) { return base + n % kStages * Memory::kStage; };
  const auto place_of = [&](int row, int c) { return (head * p.rows + row) * p.columns + column + c; };
  const int i0 = 16 * block + g;

  const auto copy = [&](int n) {
    const int64_t first = static_cast<int64_t>(n) * kChunk;
    if (n < chunks) {
      const uint32_t to = stage_of(n);
      if constexpr (!kKeeps) copy_rows<kPanels>(to, p.query, b, h, 0, p.rows, first, p.length, block, lane);
      copy_rows<kPanels>(to + Memory::kKey, p.key, b, h, 0, p.rows, first, p.length, block, lane);
      copy_rows<1>(to + Memory::kValue, p.other, b, h, column, p.columns, first, p.length, block, lane);
    }
    ptx::copies_commit();
  };

  const bool gated = p.gate.log_forget != nullptr;
  RawChunk raw;
  const auto load_raw = [&](int n) {
    raw.load(p.gate, p.beta, p.length, b, h, static_cast<int64_t>(n) * kChunk, lane);
  };
  // Chunk n's rows, P and W.
  const auto prepare = [&](int n) {
    DeltaForwardRows& rows = shared.rows[n & 1];
    const uint32_t query = stage_of(n), key = query + Memory::kKey, solution = base + Memory::kSolution;
    if (block == 0) *reinterpret_cast<float2*>(&rows.beta[2 * lane]) = raw.beta;
    ptx::copies_wait<kStages - 2>();
    __syncwarp();
    if constexpr (!kKeeps) normalize_rows<Element, kPanels>(query, rows.pair_unit, block, lane);
    normalize_rows<Element, kPanels>(key, shared.key_unit, block, lane);
    ptx::named_barrier_sync(kPrepareBarrier, kComputing);
    const int token = threadIdx.x - kComputing;
    if (token < kChunk) shared.strength[token] = rows.beta[token] * shared.key_unit[token];
    if (block == 0) {
      if (gated || n == 0) prepare_gates(shared.gates, raw.gates, 1.0f, 1.0f, false, lane);
      if (n + 1 < chunks) load_raw(n + 1);
    }
    const auto store = [&](const Sums& sums, int offset, float* units, const float(&row_unit)[2]) {
      float unit[2];
      uint4* const to = reinterpret_cast<uint4*>(memory + offset + (n & 1) * kFragments) + lane;
      store_fragments(sums, unit, 0, block + 1, [&](int k) { return to + 32 * lower_block(block, k); });
      if (t == 0) units[i0] = row_unit[0] * unit[0], units[i0 + 8] = row_unit[1] * unit[1];
    };
    const float key_unit[2] = {shared.key_unit[i0], shared.key_unit[i0 + 8]};
    Sums sums = {};
    multiply_rows<kRows / 16>(sums, key, key, block, lane);
    ptx::named_barrier_sync(kPrepareBarrier, kComputing);
    if (token < kChunk) {
      const float unit = shared.key_unit[token];
      rows.read_key[token] = shared.gates.read[token] * unit;
      rows.write[token] = shared.gates.write[token] * unit;
      if constexpr (!kKeeps) rows.read_query[token] = shared.gates.read[token] * rows.pair_unit[token];
      if (token == 0) rows.total = shared.gates.total;
    }
    weigh_pairs(sums, shared.gates, gated, 1, block, lane);
    solve_rows(sums, solution,
               reinterpret_cast<float*>(memory + Memory::kPairs + (n & 1) * kFragments + block * (kFragments / kWarps)),
               shared.strength, shared.key_unit, block, lane);
    if constexpr (kKeeps) {
      uint4* const to = p.arrays.inverse + index_of(n) * (kLowerBlocks * 32) + lane;
      if (tile == 0)
        for (int j = 0; j <= block; ++j) {
          uint32_t words[4];
          load_transposed_left(words, solution, block, j, lane);
          to[32 * lower_block(block, j)] = {words[0], words[1], words[2], words[3]};
        }
    }
    scale_columns(sums, shared.strength, lane);
    store(sums, Memory::kInverse, rows.inverse_unit, key_unit);
    if constexpr (!kKeeps) {
      // All warps have left the scratch, which lies where the pairs go.
      ptx::named_barrier_sync(kPrepareBarrier, kComputing);
      Sums pairs = {};
      multiply_rows<kRows / 16>(pairs, query, key, block, lane);
      weigh_pairs(pairs, shared.gates, gated, 0, block, lane);
      scale_columns(pairs, shared.key_unit, lane);
      const float query_unit[2] = {rows.pair_unit[i0], rows.pair_unit[i0 + 8]};
      __syncwarp();  // all lanes have read what store overwrites
      store(pairs, Memory::kPairs, rows.pair_unit, query_unit);
    }
  };

  DeltaState<kRows> state;
  if (!prepares) {
    state.load(p.initial, p.rows, columns, place_of, block, lane);
    const float largest = state.largest();
    if (lane == 0) shared.largest[block] = largest;
  }
  const int64_t token_bytes = static_cast<int64_t>(p.heads) * p.columns * 2;
  char* const out = static_cast<char*>(p.out) + ((b * p.length * p.heads + h) * p.columns + column) * 2;

  const auto compute = [&](int n) {
    const DeltaForwardRows& rows = shared.rows[n & 1];
    const uint32_t query = stage_of(n), key = query + Memory::kKey, value = query + Memory::kValue,
                   rounded = base + Memory::kState;
    float(&factors)[kChunk] = shared.factor;
    const float(&largest)[kWarps] = shared.largest;
    const float most = power_of_two_below(fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]))),
                state_unit = most * state.unit;
    state.round_to(rounded, reciprocal_of_power(most), block, lane);
    ptx::named_barrier_sync(kStateBarrier, kComputing);
    if constexpr (kKeeps) {
      uint4* const to = p.arrays.before + tile_index_of(n) * (Memory::kTile / 16);
#pragma unroll
      for (int m = 0; m < kPanels; ++m) write_image(to + m * (kPanel / 16), rounded + m * kPanel, block, lane);
      if (threadIdx.x % kComputing == 0) p.arrays.before_unit[tile_index_of(n)] = state_unit;
    }
    // The rows `block` of a tile times the state.
    const auto read_state = [&](Sums& sums, uint32_t tile_of_rows) {
#pragma unroll
      for (int k = 0; k < kRows / 16; ++k) {
        uint32_t a[4];
        load_left(a, tile_of_rows, block, k, lane);
        add_rows(sums, a, rounded, k, lane);
      }
    };
    Sums x = {};
    read_state(x, key);
    {
      const float factor[2] = {rows.read_key[i0] * state_unit, rows.read_key[i0 + 8] * state_unit};
#pragma unroll
      for (int c = 0; c < 8; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 v = unpack<Element>(ptx::load_word(at_piece(sums_address(value, block, lane), c) + 1024 * half));
          x[c][2 * half] = v.x - factor[half] * x[c][2 * half];
          x[c][2 * half + 1] = v.y - factor[half] * x[c][2 * half + 1];
        }
    }
    float unit[2];
    const auto put_rows = [&](const Sums& sums, uint32_t to) {
      row_units(sums, unit);
      const float inverse[2] = {reciprocal_of_power(unit[0]), reciprocal_of_power(unit[1])};
      store_rows<__half>(sums, inverse, to, block, lane);
    };
    const auto put_units = [&](float* to) {
      if (t == 0) to[i0] = unit[0], to[i0 + 8] = unit[1];
    };
    put_rows(x, value);  // over the values of this warp's rows
    put_units(factors);
    ptx::named_barrier_sync(kStateBarrier, kComputing);
    const auto fragments = [&](int offset) {
      const uint4* from = reinterpret_cast<const uint4*>(memory + offset + (n & 1) * kFragments) + lane;
      return [=](int k) { return k <= block ? from[32 * lower_block(block, k)] : uint4{}; };
    };
    {
      const float outer[2] = {rows.inverse_unit[i0], rows.inverse_unit[i0 + 8]}, own[2] = {unit[0], unit[1]};
      multiply_weighted<true>(x, outer, own, fragments(Memory::kInverse), factors, value, lane);
    }
    ptx::named_barrier_sync(kStateBarrier, kComputing);  // X's tile is read
    if constexpr (kKeeps) {
      put_rows(x, rounded);  // over rows of the state, which are read
      put_units(p.arrays.residual_unit + tile_index_of(n) * kChunk);
      __syncwarp();
      write_image(p.arrays.residual + tile_index_of(n) * (kPanel / 16), rounded, block, lane);
    }
    const float beta[2] = {rows.beta[i0], rows.beta[i0 + 8]};
    scale_rows(x, beta);
    put_rows(x, value);
    put_units(factors);
    Sums read = {};
    const float factor[2] = {rows.read_query[i0] * state_unit, rows.read_query[i0 + 8] * state_unit};
    if constexpr (!kKeeps) {
      read_state(read, query);
      scale_rows(read, factor);
    }
    ptx::named_barrier_sync(kStateBarrier, kComputing);
    if constexpr (!kKeeps) {
      const float outer[2] = {rows.pair_unit[i0], rows.pair_unit[i0 + 8]},
                  own[2] = {kRows * factor[0], kRows * factor[1]};
      multiply_weighted<false>(read, outer, own, fragments(Memory::kPairs), factors, value, lane);
      const float scale[2] = {p.scale, p.scale};
      store_rows<Element>(read, scale, rounded, block, lane);  // the same
      __syncwarp();
      const int64_t first = static_cast<int64_t>(n) * kChunk;
      write_rows(out + first * token_bytes, token_bytes, p.length - first, columns, rounded, block, lane);
    }
    state.change_unit(largest_product(rows.write, factors, lane), state_unit, rows.total);
    const float inverse = reciprocal_of_power(state.unit);
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const int j = 16 * k + 2 * t;
      const float2 near{rows.write[j] * factors[j] * inverse, rows.write[j + 1] * factors[j + 1] * inverse},
          far{rows.write[j + 8] * factors[j + 8] * inverse, rows.write[j + 9] * factors[j + 9] * inverse};
#pragma unroll
      for (int m = 0; m < kPanels; ++m) {
        uint32_t left[4];
        load_weighted_transposed(left, key, k, 4 * m + block, near, far, lane);
        add_rows(state.x[m], left, value, k, lane);
      }
    }
    const float after = state.largest();
    if (lane == 0) shared.largest[block] = after;
  };

  if (prepares) {
    load_raw(0);
    for (int n = 0; n + 2 < kStages; ++n) copy(n);
  }
  for (int n = -1; n < chunks; ++n) {
    __syncthreads();
    if (prepares) {
      copy(n + kStages - 1);
      if (n + 1 < chunks) prepare(n + 1);
    } else if (n >= 0) {
      compute(n);
    }
  }
  if (p.last && !prepares) state.store(p.last, p.rows, columns, place_of, block, lane);
#endif
}

}  // namespace lethe::matrix_state
