#pragma once
// The delta rule's gradients from the last token back, a CTA a head and 64 columns of the gradient R of the state, in chunks as delta_forward.cuh:
//
//   dN = scale · Pᵀ dO + (D_C ∘ K) R      dN̄ = dN − Wᵀ (β ∘ dN)      dV = β ∘ dN̄
//   R ← γ_C R + scale · (γ ∘ Q)ᵀ dO − (γ ∘ K)ᵀ dV
//
// dN is the gradient of what is written where later tokens of the chunk keep theirs, dN̄ the whole one, which delta_gradients.cuh reads.
#include "optimized/cuda/matrix_state/delta_state.cuh"

namespace lethe::matrix_state {

/// Of each token of a chunk, what the warps of R multiply with.
struct alignas(16) DeltaReverseRows {
  float key_unit[kChunk];
  float write[kChunk];      ///< D_C, and the key's unit
  float pair_unit[kChunk];  ///< of Pᵀ's rows; until they are there, of the queries
  float strength[kChunk];   ///< β, and the key's unit
  float beta[kChunk];
  float read_query[kChunk];  ///< scale · γ, and the units of query and gradient; until they are there, of the gradient
  float read_key[kChunk];    ///< −γ, and the key's unit
  float total;               ///< γ_C
};

struct DeltaReverseShared {
  DeltaReverseRows rows[2];
  alignas(16) ChunkGates gates;
  alignas(16) float pair_factor[kChunk];  ///< of Pᵀ's columns
  float factor[kChunk];                   ///< units of dN's rows times strengths
  float gradient_unit[kChunk];            ///< units of dV's rows
  float ones[kChunk];
  float largest[kWarps];
};

template <int kRows>
struct DeltaReverseMemory {
  static constexpr int kTile = kRows / 64 * kPanel, kKey = kTile, kOther = 2 * kTile, kStage = 2 * kTile + kPanel;
  static constexpr int kPairs = kDeltaStages * kStage, kState = kPairs + 2 * kFragments, kWritten = kState + kTile,
                       kGradient = kWritten + kPanel, kOthers = kGradient + kPanel;
  static constexpr int kBytes = kOthers + sizeof(DeltaReverseShared);
};

template <typename Element, int kRows>
__global__ void __launch_bounds__(kDeltaThreads, kRows == 64 ? 2 : 1)
    delta_reversed(const __grid_constant__ DeltaArguments p) {
#if __CUDA_ARCH__ < 900  // where the kernels of wgmma run instead
  using Memory = DeltaReverseMemory<kRows>;
  constexpr int kPanels = kRows / 64, kStages = kDeltaStages;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t base = ptx::shared_address(memory);
  auto& shared = *reinterpret_cast<DeltaReverseShared*>(memory + Memory::kOthers);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = warp % kWarps, g = lane / 4, t = lane % 4;
  const bool prepares = warp >= kWarps;
  const int ctas = delta_ctas(p.columns, 1), tile = blockIdx.x % ctas, column = 64 * tile,
            columns = min(64, p.columns - column);
  const int64_t head = blockIdx.x / ctas, b = head / p.heads, h = head % p.heads;
  const int chunks = static_cast<int>((p.length + kChunk - 1) / kChunk);
  const auto chunk_of = [&](int n) { return chunks - 1 - n; };  // its place in time
  const auto index_of = [&](int n) { return head * chunks + chunk_of(n); };
  const auto tile_index_of = [&](int n) {
    return static_cast<int64_t>(tile) * p.batch * p.heads * chunks + index_of(n);
  };
  const auto stage_of = [&](int n) { return base + n % kStages * Memory::kStage; };
  const auto place_of = [&](int row, int c) { return (head * p.rows + row) * p.columns + column + c; };
  const int j0 = 16 * block + g;

  const auto copy = [&](int n) {
    const int64_t first = static_cast<int64_t>(chunk_of(n)) * kChunk;
    if (n < chunks) {
      const uint32_t to = stage_of(n);
      copy_rows<kPanels>(to, p.query, b, h, 0, p.rows, first, p.length, block, lane);
      copy_rows<kPanels>(to + Memory::kKey, p.key, b, h, 0, p.rows, first, p.length, block, lane);
      copy_rows<1>(to + Memory::kOther, p.other, b, h, column, p.columns, first, p.length, block, lane);
    }
    ptx::copies_commit();
  };

  const bool gated = p.gate.log_forget != nullptr;
  RawChunk raw;
  const auto load_raw = [&](int n) {
    raw.load(p.gate, p.beta, p.length, b, h, static_cast<int64_t>(chunk_of(n)) * kChunk, lane);
  };
  // Chunk n's rows and Pᵀ.
  const auto prepare = [&](int n) {
    DeltaReverseRows& rows = shared.rows[n & 1];
    const uint32_t query = stage_of(n), key = query + Memory::kKey;
    if (block == 0) *reinterpret_cast<float2*>(&rows.beta[2 * lane]) = raw.beta;
    ptx::copies_wait<kStages - 2>();
    __syncwarp();
    normalize_rows<Element, kPanels>(query, rows.pair_unit, block, lane);
    normalize_rows<Element, kPanels>(key, rows.key_unit, block, lane);
    normalize_rows<Element, 1>(query + Memory::kOther, rows.read_query, block, lane);
    ptx::named_barrier_sync(kPrepareBarrier, kComputing);
    const int token = threadIdx.x - kComputing;
    if (token < kChunk) shared.pair_factor[token] = p.scale * (rows.pair_unit[token] * rows.read_query[token]);
    if (block == 0) {
      if (gated || n == 0) prepare_gates(shared.gates, raw.gates, 1.0f, 1.0f, false, lane);
      if (n + 1 < chunks) load_raw(n + 1);
    }
    Sums pairs = {};
    multiply_rows<kRows / 16>(pairs, key, query, block, lane);
    ptx::named_barrier_sync(kPrepareBarrier, kComputing);
    if (token < kChunk) {
      const float unit = rows.key_unit[token];
      rows.write[token] = shared.gates.write[token] * unit;
      rows.strength[token] = rows.beta[token] * unit;
      rows.read_key[token] = -shared.gates.read[token] * unit;
      rows.read_query[token] = shared.gates.read[token] * shared.pair_factor[token];
      if (token == 0) rows.total = shared.gates.total;
    }
    const float sum[2] = {shared.gates.sum[j0], shared.gates.sum[j0 + 8]};
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const int i = 8 * c + 2 * t;
      const float2 sum_i = *reinterpret_cast<const float2*>(&shared.gates.sum[i]),
                   factor = *reinterpret_cast<const float2*>(&shared.pair_factor[i]);
      const int2 first_seen = *reinterpret_cast<const int2*>(&shared.gates.first_seen[i]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool seen = sees(i + e % 2, j0 + 8 * (e / 2), e % 2 ? first_seen.y : first_seen.x);
        const float decay = gated ? exp2_approximate((e % 2 ? sum_i.y : sum_i.x) - sum[e / 2]) : 1.0f;
        pairs[c][e] = seen ? pairs[c][e] * (decay * (e % 2 ? factor.y : factor.x)) : 0.0f;
      }
    }
    float unit[2];
    uint4* const to = reinterpret_cast<uint4*>(memory + Memory::kPairs + (n & 1) * kFragments) + lane;
    store_fragments(pairs, unit, block, kWarps, [&](int k) { return to + 32 * lower_block(k, block); });
    if (t == 0) {
      rows.pair_unit[j0] = rows.key_unit[j0] * unit[0];
      rows.pair_unit[j0 + 8] = rows.key_unit[j0 + 8] * unit[1];
    }
  };

  DeltaState<kRows> state;
  if (!prepares) {
    state.load(p.initial, p.rows, columns, place_of, block, lane);
    const float largest = state.largest();
    if (lane == 0) shared.largest[block] = largest;
    if (threadIdx.x < kChunk) shared.ones[threadIdx.x] = 1.0f;
  }
  const int64_t token_bytes = static_cast<int64_t>(p.heads) * p.columns * 2;
  char* const out = static_cast<char*>(p.out) + ((b * p.length * p.heads + h) * p.columns + column) * 2;

  const auto compute = [&](int n) {
    const DeltaReverseRows& rows = shared.rows[n & 1];
    const uint32_t query = stage_of(n), key = query + Memory::kKey, gradient = query + Memory::kOther,
                   rounded = base + Memory::kState, written = base + Memory::kWritten,
                   value_gradient = base + Memory::kGradient;
    float(&factors)[kChunk] = shared.factor;
    float(&gradient_units)[kChunk] = shared.gradient_unit;
    uint4 inverse[kWarps];
#pragma unroll
    for (int k = 0; k < kWarps; ++k) inverse[k] = uint4{};
#pragma unroll
    for (int k = 0; k < kWarps; ++k)
      if (k >= block) inverse[k] = p.arrays.inverse[(index_of(n) * kLowerBlocks + lower_block(k, block)) * 32 + lane];
    const float(&largest)[kWarps] = shared.largest;
    const float most = power_of_two_below(fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]))),
                state_unit = most * state.unit;
    state.round_to(rounded, reciprocal_of_power(most), block, lane);
    ptx::named_barrier_sync(kStateBarrier, kComputing);
    uint4* const image = p.arrays.after + tile_index_of(n) * (Memory::kTile / 16);
#pragma unroll
    for (int m = 0; m < kPanels; ++m) write_image(image + m * (kPanel / 16), rounded + m * kPanel, block, lane);
    if (threadIdx.x == 0) p.arrays.after_unit[tile_index_of(n)] = state_unit;

    Sums x = {};
#pragma unroll
    for (int k = 0; k < kRows / 16; ++k) {
      uint32_t a[4];
      load_left(a, key, block, k, lane);
      add_rows(x, a, rounded, k, lane);
    }
    {
      const float factor[2] = {rows.write[j0] * state_unit, rows.write[j0 + 8] * state_unit},
                  own[2] = {kRows * factor[0], kRows * factor[1]},
                  outer[2] = {rows.pair_unit[j0], rows.pair_unit[j0 + 8]};
      scale_rows(x, factor);
      const uint4* from = reinterpret_cast<const uint4*>(memory + Memory::kPairs + (n & 1) * kFragments) + lane;
      multiply_weighted<false>(
          x, outer, own, [&](int k) { return k >= block ? from[32 * lower_block(k, block)] : uint4{}; }, shared.ones,
          gradient, lane);
    }
    float unit[2];
    const auto put_rows = [&](uint32_t to) {
      row_units(x, unit);
      const float reciprocal[2] = {reciprocal_of_power(unit[0]), reciprocal_of_power(unit[1])};
      store_rows<__half>(x, reciprocal, to, block, lane);
    };
    put_rows(written);
    if (t == 0) {
      factors[j0] = rows.strength[j0] * unit[0];
      factors[j0 + 8] = rows.strength[j0 + 8] * unit[1];
    }
    ptx::named_barrier_sync(kStateBarrier, kComputing);
    {
      const float outer[2] = {rows.key_unit[j0], rows.key_unit[j0 + 8]}, own[2] = {unit[0], unit[1]};
      multiply_weighted<true>(
          x, outer, own, [&](int k) { return inverse[k]; }, factors, written, lane);
    }
    // dN̄ to delta_gradients.cuh, dV to the sums of R.
    put_rows(value_gradient);
    if (t == 0) {
      float* const units = p.arrays.written_unit + tile_index_of(n) * kChunk;
      units[j0] = unit[0], units[j0 + 8] = unit[1];
    }
    __syncwarp();
    write_image(p.arrays.written + tile_index_of(n) * (kPanel / 16), value_gradient, block, lane);
    __syncwarp();
    const float beta[2] = {rows.beta[j0], rows.beta[j0 + 8]};
    scale_rows(x, beta);
    put_rows(value_gradient);
    if (t == 0) gradient_units[j0] = unit[0], gradient_units[j0 + 8] = unit[1];
    ptx::named_barrier_sync(kStateBarrier, kComputing);
    const float one[2] = {1.0f, 1.0f};
    store_rows<Element>(x, one, written, block, lane);
    __syncwarp();
    const int64_t first = static_cast<int64_t>(chunk_of(n)) * kChunk;
    write_rows(out + first * token_bytes, token_bytes, p.length - first, columns, written, block, lane);

    state.change_unit(fmaxf(largest_product(rows.read_query, shared.ones, lane),
                            largest_product(rows.read_key, gradient_units, lane)),
                      state_unit, rows.total);
    const float reciprocal = reciprocal_of_power(state.unit);
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const int i = 16 * k + 2 * t;
      const auto add = [&](const float* numbers, const float* units, uint32_t left_tile, uint32_t right_tile) {
        const float2 near{numbers[i] * units[i] * reciprocal, numbers[i + 1] * units[i + 1] * reciprocal},
            far{numbers[i + 8] * units[i + 8] * reciprocal, numbers[i + 9] * units[i + 9] * reciprocal};
#pragma unroll
        for (int m = 0; m < kPanels; ++m) {
          uint32_t left[4];
          load_weighted_transposed(left, left_tile, k, 4 * m + block, near, far, lane);
          add_rows(state.x[m], left, right_tile, k, lane);
        }
      };
      add(rows.read_query, shared.ones, query, gradient);
      add(rows.read_key, gradient_units, key, value_gradient);
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
