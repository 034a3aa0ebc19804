#pragma once
// The gradients of query, key and log f of a matrix state with a gate a row: a pass over chunks of 64 tokens, the last one first, of one head and 64 rows.
//
// With S the state before a chunk, R the gradient of the state after it, and B_ij = scale dO_i·v_j:
//
//   dq_i = E_i ∘ (scale S dO_i) + Σ_{j ≤ i} D_ij ∘ B_ij k_j
//   dk_j = D_Cj ∘ (R v_j)       + Σ_{i ≥ j} D_ij ∘ B_ij q_i
//   d log f_l = Σ_{i ≥ l} q_i ∘ E_i ∘ (scale S dO_i) + Σ_{j < l} k_j ∘ D_Cj ∘ (R v_j) + E_C ⟨S, R⟩ + Σ_{i ≥ l > j} q_i ∘ D_ij ∘ B_ij k_j
//   R ← E_C R + Σ_i scale (E_i ∘ q_i) dO_iᵀ
//
// Halving (vector_sweep.cuh), from runs of 64 tokens to runs of 2: a token of an upper half has the operand q times the gates since the middle, one of a
// lower half k times the gates up to it. One product of these with the symmetric B of the run's pairs is Σ_j D_ij B_ij k_j for the upper tokens and
// Σ_i D_ij B_ij q_i for the lower ones, but for the token's own gates, by which what has been summed is multiplied from one halving to the next. The
// pairs that gate l separates are, at each halving, those of the upper tokens from l on or of the lower ones before l: no difference is taken.
//
// Four warps own 16 rows each, of R, S, q, k and f, with tokens along the columns of their accumulators. Four others copy, multiply B of the chunk before,
// and store. S comes from vector_states.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/vector_parts.cuh"

namespace lethe::matrix_state {

/// Of vector_states and vector_gradient. A tile is 64 rows of a head's state.
struct VectorGradientArguments {
  Operand query, key, value, grad_values, key_gate;
  void *grad_query, *grad_key;  ///< [B, T, H, rows] contiguous
  float* grad_key_gate;         ///< the same
  int64_t length;
  int batch, heads, rows, columns;
  float scale;
  const float *initial, *grad_last;  ///< [B, H, rows, columns]; null: zeros
  uint4* states;                     ///< [tiles, B·H, chunks, warp, columns / 16, lane]: S before each chunk as a left operand
  float* state_units;                ///< [tiles, B·H, chunks, warp]: the powers of two that float16's are divided by
};

constexpr int kRowTile = 64;  ///< rows of a CTA
constexpr int kGateStride = (kRowTile + 4) * 4;  ///< bytes: tokens 2t and rows g of a fragment are in different banks

/// What a CTA of either kernel is: a tile of rows of a head.
struct RowTile {
  int64_t head, b, h, index;  ///< index: of the tile and head
  int row;
  int chunks;
};

__device__ inline RowTile row_tile(const VectorGradientArguments& p) {
  const int tiles = (p.rows + kRowTile - 1) / kRowTile, tile = static_cast<int>(blockIdx.x % tiles);
  const int64_t head = blockIdx.x / tiles;
  return {head, head / p.heads, head % p.heads, static_cast<int64_t>(tile) * p.batch * p.heads + head, tile * kRowTile,
          static_cast<int>((p.length + kTokens - 1) / kTokens)};
}

/// A warp copies 16 tokens of an operand, kPieces of 16 bytes a row, from `column` on; zeros past the end.
template <int kElement, int kPieces, typename At>
__device__ __forceinline__ void copy_rows(const Operand& from, const RowTile& place, int64_t first, int64_t length, int column,
                                          int columns, int lane, At at) {
  constexpr int kRowsAtOnce = 32 / kPieces, kElements = 16 / kElement;
  const int piece = lane % kPieces;
  const char* const begin = static_cast<const char*>(from.data) +
                            (place.b * from.batch_stride + place.h * from.head_stride + column) * kElement;
  int64_t token = first + lane / kPieces;
  const char* source = begin + token * from.token_stride * kElement + piece * 16;
  const bool inside = column + piece * kElements < columns;
#pragma unroll
  for (int i = 0; i < kBlock; i += kRowsAtOnce) {
    const bool valid = inside && token < length;
    ptx::copy_chunk(at(lane / kPieces, piece, i), valid ? source : begin, valid);
    token += kRowsAtOnce;
    source += kRowsAtOnce * from.token_stride * kElement;
  }
}

/// Where a warp's 16 rows of tile `tile` are, of kWidth columns: for copy_rows.
template <int kWidth>
__device__ __forceinline__ auto tile_rows(uint32_t tile, int first) {
  return [tile, first](int row, int piece, int further) {
    return rows_below<kWidth>(tile + ptx::swizzled_chunk<kWidth>(first + row, piece), further);
  };
}

/// The gates of 8 tokens and two rows, and their products over runs: token 2t + e of row g + 8h at [2h + e]; t of the lane.
struct EightGates {
  float f[4], other_two[2], other_four[2], eight[2];

  /// Completes what follows from f.
  __device__ __forceinline__ void multiply() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float two = f[2 * h] * f[2 * h + 1];
      other_two[h] = __shfl_xor_sync(kEveryLane, two, 1);
      const float four = two * other_two[h];
      other_four[h] = __shfl_xor_sync(kEveryLane, four, 2);
      eight[h] = four * other_four[h];
    }
  }
  /// The gates from the beginning of the run of 2, 4 or 8 up to and with the token's own; and those after it to the run's end.
  __device__ __forceinline__ float up_two(int i) const { return i % 2 ? f[i - 1] * f[i] : f[i]; }
  __device__ __forceinline__ float down_two(int i) const { return i % 2 ? 1.0f : f[i + 1]; }
  __device__ __forceinline__ float up_four(int i, bool upper2) const {
    return up_two(i) * (upper2 ? other_two[i / 2] : 1.0f);
  }
  __device__ __forceinline__ float down_four(int i, bool upper2) const {
    return down_two(i) * (upper2 ? 1.0f : other_two[i / 2]);
  }
  __device__ __forceinline__ float up(int i, bool upper2, bool upper4) const {
    return up_four(i, upper2) * (upper4 ? other_four[i / 2] : 1.0f);
  }
  __device__ __forceinline__ float down(int i, bool upper2, bool upper4) const {
    return down_four(i, upper2) * (upper4 ? 1.0f : other_four[i / 2]);
  }
};

template <int kColumns>
struct VectorStatesShared {
  static constexpr int kStages = kColumns == 64 ? 3 : 2;
  static constexpr int kValue = kTokens * kRowTile * 2, kGates = kValue + kTokens * kColumns * 2,
                       kStage = kGates + kTokens * kGateStride, kBytes = kStages * kStage;
};

/// The state before each chunk, in 16 bits: S ← E_C S + Σ_j (D_Cj ∘ k_j) v_jᵀ. A warp owns 16 rows.
template <typename Element, int kColumns>
__global__ void __launch_bounds__(128, 3) vector_states(const __grid_constant__ VectorGradientArguments p) {
  using Shared = VectorStatesShared<kColumns>;
  constexpr bool kHalf = std::is_same_v<Element, __half>;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const RowTile place = row_tile(p);
  const auto load = [&](int n) {
    if (n < place.chunks) {
      const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
      const int64_t first = static_cast<int64_t>(n) * kTokens + kBlock * warp;
      copy_rows<2, kRowTile / 8>(p.key, place, first, p.length, place.row, p.rows, lane,
                                 tile_rows<kRowTile>(stage, kBlock * warp));
      copy_rows<2, kColumns / 8>(p.value, place, first, p.length, 0, p.columns, lane,
                                 tile_rows<kColumns>(stage + Shared::kValue, kBlock * warp));
      copy_rows<4, kRowTile / 4>(p.key_gate, place, first, p.length, place.row, p.rows, lane,
                                 [&](int row, int piece, int further) {
                                   return stage + Shared::kGates + (kBlock * warp + row + further) * kGateStride +
                                          piece * 16;
                                 });
    }
    ptx::copies_commit();
  };
  float state[kColumns / 8][4];  // row g + 8·(e / 2), column 8n + 2t + e % 2
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = place.row + 16 * warp + g + 8 * (e / 2), column = 8 * n + 2 * t + e % 2;
      state[n][e] = p.initial && row < p.rows && column < p.columns
                        ? p.initial[(place.head * p.rows + row) * p.columns + column]
                        : 0.0f;
    }
#pragma unroll
  for (int n = 0; n + 1 < Shared::kStages; ++n) load(n);
  const bool upper2 = t & 1, upper4 = t & 2;
#pragma unroll 1
  for (int n = 0; n < place.chunks; ++n) {
    ptx::copies_wait<Shared::kStages - 2>();
    __syncthreads();
    load(n + Shared::kStages - 1);
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int64_t at = (place.index * place.chunks + n) * 4 + warp;
    float unscale = 1.0f;
    if constexpr (kHalf) {
      float x = 0.0f;
#pragma unroll
      for (int k = 0; k < kColumns / 8; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) x = fmaxf(x, fabsf(state[k][e]));
      const float unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(x))));
      unscale = inverse_of_power(unit);
      if (lane == 0) p.state_units[at] = unit;
    }
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) {
      const float(&s0)[4] = state[2 * k], (&s1)[4] = state[2 * k + 1];
      p.states[(at * (kColumns / 16) + k) * 32 + lane] = {
          pack<Element>(s0[0] * unscale, s0[1] * unscale), pack<Element>(s0[2] * unscale, s0[3] * unscale),
          pack<Element>(s1[0] * unscale, s1[1] * unscale), pack<Element>(s1[2] * unscale, s1[3] * unscale)};
    }
    // From the last token back: `after` is the product of the gates that follow.
    uint32_t keys[4][4];
    float after[2] = {1.0f, 1.0f}, logs[2] = {};
#pragma unroll
    for (int m = 3; m >= 0; --m) {
      uint32_t raw[4];
      ptx::load_matrices_transposed(
          raw, stage + ptx::swizzled_chunk<kRowTile>(16 * m + lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2));
#pragma unroll
      for (int i = 1; i >= 0; --i) {
        EightGates gates;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float log = kLog2e * __uint_as_float(ptx::load_shared(
                                         stage + Shared::kGates + (16 * m + 8 * i + 2 * t + j % 2) * kGateStride +
                                         (16 * warp + g + 8 * (j / 2)) * 4));
          logs[j / 2] += log;
          gates.f[j] = exp2_approximate(log);
        }
        gates.multiply();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 k = unpack<Element>(raw[h + 2 * i]);
          keys[m][h + 2 * i] = pack<Element>(k.x * gates.down(2 * h, upper2, upper4) * after[h],
                                             k.y * gates.down(2 * h + 1, upper2, upper4) * after[h]);
          after[h] *= gates.eight[h];
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 1);
      logs[h] += __shfl_xor_sync(kEveryLane, logs[h], 2);
      const float total = exp2f(logs[h]);
#pragma unroll
      for (int k = 0; k < kColumns / 8; ++k) {
        state[k][2 * h] *= total;
        state[k][2 * h + 1] *= total;
      }
    }
    const uint32_t values = stage + Shared::kValue + ptx::swizzled_chunk<kColumns>(lane % 16, lane / 16);
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int k = 0; k < kColumns / 16; ++k) {
        uint32_t right[4];
        ptx::load_matrices_transposed(right, steps_right<kColumns>(values + 16 * m * (kColumns * 2), k));
        ptx::multiply_add<Element>(state[2 * k], keys[m], right[0], right[1]);
        ptx::multiply_add<Element>(state[2 * k + 1], keys[m], right[2], right[3]);
      }
  }
}

template <int kColumns>
struct VectorGradientShared {
  static constexpr int kStages = 3;
  static constexpr int kKey = kTokens * kRowTile * 2, kGradValue = 2 * kKey, kValue = kGradValue + kTokens * kColumns * 2,
                       kGates = kValue + kTokens * kColumns * 2, kStage = kGates + kTokens * kGateStride;
  static constexpr int kPairs = kStages * kStage, kPairStage = kTokens * kTokens * 2;
  static constexpr int kDiagonal = kPairs + 2 * kPairStage;  // B_ii in float
  static constexpr int kLargest = kDiagonal + 2 * kTokens * 4, kBytes = kLargest + 2 * 4 * 4;
};

/// A warp of those that copy, multiply B and store: 16 tokens of every chunk.
template <typename Element, int kColumns>
struct VectorPairs {
  using Shared = VectorGradientShared<kColumns>;
  static constexpr bool kHalf = std::is_same_v<Element, __half>;
  const VectorGradientArguments& p;
  const RowTile& place;
  uint32_t shared;
  int pw, lane;

  /// In order of the pass: n = 0 is the last chunk.
  __device__ __forceinline__ int64_t first_of(int n) const {
    return static_cast<int64_t>(place.chunks - 1 - n) * kTokens + kBlock * pw;
  }

  __device__ __forceinline__ void load(int n) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int64_t first = first_of(n);
    const int row = kBlock * pw;
    const auto of_rows = [&](const Operand& from, uint32_t tile) {
      copy_rows<2, kRowTile / 8>(from, place, first, p.length, place.row, p.rows, lane, tile_rows<kRowTile>(tile, row));
    };
    const auto of_columns = [&](const Operand& from, uint32_t tile) {
      copy_rows<2, kColumns / 8>(from, place, first, p.length, 0, p.columns, lane, tile_rows<kColumns>(tile, row));
    };
    of_rows(p.query, stage);
    of_rows(p.key, stage + Shared::kKey);
    of_columns(p.grad_values, stage + Shared::kGradValue);
    of_columns(p.value, stage + Shared::kValue);
    copy_rows<4, kRowTile / 4>(p.key_gate, place, first, p.length, place.row, p.rows, lane,
                               [&](int r, int piece, int further) {
                                 return stage + Shared::kGates + (row + r + further) * kGateStride + piece * 16;
                               });
  }

  /// B of rows 16·pw … of chunk n and the columns up to them.
  __device__ __forceinline__ void multiply(int n) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const uint32_t pairs = shared + Shared::kPairs + n % 2 * Shared::kPairStage;
    const int g = lane / 4, t = lane % 4;
    float sums[4][2][4];
    const uint32_t left_at = stage + Shared::kGradValue + ptx::swizzled_chunk<kColumns>(kBlock * pw + lane % 16, lane / 16);
    const uint32_t right_at = stage + Shared::kValue + ptx::swizzled_chunk<kColumns>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    float largest = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[c][i][e] = 0.0f;
      if (c > pw) continue;
#pragma unroll
      for (int k = 0; k < kColumns / 16; ++k) {
        uint32_t left[4], right[4];
        ptx::load_matrices(left, steps_right<kColumns>(left_at, k));
        ptx::load_matrices(right, steps_right<kColumns>(right_at + 16 * c * (kColumns * 2), k));
        ptx::multiply_add<Element>(sums[c][0], left, right[0], right[1]);
        ptx::multiply_add<Element>(sums[c][1], left, right[2], right[3]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          sums[c][i][e] *= p.scale;
          largest = fmaxf(largest, fabsf(sums[c][i][e]));
        }
    }
    float unscale = 1.0f;
    if constexpr (kHalf) {
      const uint32_t at = shared + Shared::kLargest + n % 2 * 16;
      const uint32_t bits = __reduce_max_sync(kEveryLane, __float_as_uint(largest));
      if (lane == 0) ptx::store_shared(at + 4 * pw, bits);
      wait_for_pairs();
      unscale = inverse_of_power(pair_unit<Shared>(shared, n));
    }
    // The diagonal in float: row 8i + g of the block, column 2t + e.
    if (g / 2 == t) {
      const uint32_t to = shared + Shared::kDiagonal + (n % 2 * kTokens + kBlock * pw + g) * 4;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (c == pw) {
          ptx::store_shared(to, __float_as_uint(g % 2 ? sums[c][0][1] : sums[c][0][0]));
          ptx::store_shared(to + 32, __float_as_uint(g % 2 ? sums[c][1][3] : sums[c][1][2]));
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (c > pw) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::store_shared(pairs + ptx::swizzled_chunk<kTokens>(kBlock * pw + g + 8 * half, 2 * c + i) + 4 * t,
                            pack<Element>(sums[c][i][2 * half] * unscale, sums[c][i][2 * half + 1] * unscale));
    }
  }

  __device__ __forceinline__ static void wait_for_pairs();

  /// Stores the warp's rows of dq and dk, which are in the places of q and k.
  __device__ __forceinline__ void store(int n) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int piece = lane % 8;
    int64_t token = first_of(n) + lane / 8;
#pragma unroll
    for (int i = 0; i < kBlock; i += 4, token += 4) {
      const uint32_t from = stage + rows_below<kRowTile>(ptx::swizzled_chunk<kRowTile>(kBlock * pw + lane / 8, piece), i);
      const uint4 dq = ptx::load_shared4(from), dk = ptx::load_shared4(from + Shared::kKey);
      if (token >= p.length || place.row + 8 * piece >= p.rows) continue;
      const int64_t to = (((place.b * p.length + token) * p.heads + place.h) * p.rows + place.row + 8 * piece) * 2;
      *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_query) + to) = dq;
      *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_key) + to) = dk;
    }
    __syncwarp();
  }
};

}  // namespace lethe::matrix_state
