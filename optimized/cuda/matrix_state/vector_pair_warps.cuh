#pragma once
// The copies of vector_gradient.cuh, its product B and its stores: of a chunk's blocks of 16 tokens a warp's share.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

/// What a CTA of vector_gradient has in shared memory, so little that an SM has two of 64 rows and three of 32. Gates and B are of the chunk at hand; of q, k,
/// dO and v the next chunk is on its way.
template <int kRows, int kColumns, bool kColumnGate>
struct VectorGradientShared {
  static constexpr int kStages = kColumns <= 64 ? 2 : 1, kWarps = kRows / 16;
  static constexpr int kKey = kTokens * kRows * 2, kGradValue = 2 * kKey, kValue = kGradValue + kTokens * kColumns * 2,
                       kStage = kValue + kTokens * kColumns * 2;
  static constexpr int kGates = kStages * kStage, kPairs = kGates + kTokens * kGateStride<kRows>,
                       kPairBytes = PairRecord::kTotals + (kColumnGate ? kColumns * 4 : 0);
  /// Of a warp and block of 16 tokens, what a lane holds of a left operand, two of them; and of each row, the products of its gates.
  static constexpr int kOperands = kPairs + kPairBytes, kProducts = kOperands + kWarps * 2 * 4 * 512;
  static constexpr int kBytes = kProducts + kWarps * 4 * 128;
  static_assert(kPairBytes % 16 == 0);
};

/// A warp's share of a chunk's tokens: `block` is one of its blocks of 16.
template <typename Element, int kRows, int kColumns, bool kColumnGate>
struct VectorPairs {
  using Shared = VectorGradientShared<kRows, kColumns, kColumnGate>;
  static constexpr bool kHalf = std::is_same_v<Element, __half>;
  const VectorGradientArguments& p;
  const RowTile& place;
  uint32_t shared;
  int warp, lane;

  /// In order of the pass: n = 0 is the last chunk.
  __device__ __forceinline__ int64_t first_of(int n, int block) const {
    return static_cast<int64_t>(place.chunks - 1 - n) * kTokens + kBlock * block;
  }

  /// Copies q, k, dO and v of chunk n, if there is one.
  __device__ __forceinline__ void load(int n) const {
    if (n >= place.chunks) return;
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    each_block<Shared::kWarps>(warp, [&](int block) {
      const int64_t first = first_of(n, block);
      const int row = kBlock * block;
      const auto of_rows = [&](const Operand& from, uint32_t tile) {
        copy_rows<2, kRows / 8>(from, place, first, p.length, place.row, p.rows, lane, tile_rows<kRows>(tile, row));
      };
      const auto of_columns = [&](const Operand& from, uint32_t tile) {
        copy_rows<2, kColumns / 8>(from, place, first, p.length, 0, p.columns, lane, tile_rows<kColumns>(tile, row));
      };
      of_rows(p.query, stage);
      of_rows(p.key, stage + Shared::kKey);
      of_columns(p.grad_values, stage + Shared::kGradValue);
      of_columns(p.value, stage + Shared::kValue);
    });
  }

  /// Copies the gates of chunk n, and with a gate a column what vector_pairs left of it.
  __device__ __forceinline__ void load_gates(int n) const {
    if constexpr (kColumnGate) {
      const char* record = p.pairs + (place.head * place.chunks + place.chunks - 1 - n) * PairRecord::kBytes;
#pragma unroll
      for (int i = 0; i < Shared::kPairBytes; i += 2 * kRows * 16) {
        const int at = i + (32 * warp + lane) * 16;
        if (at < Shared::kPairBytes && PairRecord::used(at)) ptx::copy_chunk(shared + Shared::kPairs + at, record + at);
      }
    }
    each_block<Shared::kWarps>(warp, [&](int block) {
      copy_rows<4, kRows / 4>(
          p.key_gate, place, first_of(n, block), p.length, place.row, p.rows, lane, [&](int r, int piece, int further) {
            return shared + Shared::kGates + (kBlock * block + r + further) * kGateStride<kRows> + piece * 16;
          });
    });
  }

  /// B of the warp's rows of chunk n and the columns up to them.
  __device__ __forceinline__ void multiply(int n) const {
    each_block<Shared::kWarps>(warp, [&](int block) { multiply_block(n, block); });
  }

  __device__ __forceinline__ void multiply_block(int n, int block) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage, pairs = shared + Shared::kPairs;
    const int g = lane / 4, t = lane % 4;
    float sums[4][2][4];
    const uint32_t left_at =
        stage + Shared::kGradValue + ptx::swizzled_chunk<kColumns>(kBlock * block + lane % 16, lane / 16);
    const uint32_t right_at =
        stage + Shared::kValue + ptx::swizzled_chunk<kColumns>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    float largest = 0.0f;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[c][i][e] = 0.0f;
      if (c > block) continue;
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
      const float unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(largest))));
      if (lane == 0) ptx::store_word(pairs + PairRecord::kUnits + block * 4, __float_as_uint(unit));
      unscale = inverse_of_power(unit);
    }
    // The diagonal in float: row 8i + g of the block, column 2t + e.
    if (g / 2 == t) {
      const uint32_t to = pairs + PairRecord::kDiagonal + (kBlock * block + g) * 4;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (c == block) {
          ptx::store_word(to, __float_as_uint(g % 2 ? sums[c][0][1] : sums[c][0][0]));
          ptx::store_word(to + 32, __float_as_uint(g % 2 ? sums[c][1][3] : sums[c][1][2]));
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (c > block) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::store_word(pairs + ptx::swizzled_chunk<kTokens>(kBlock * block + g + 8 * half, 2 * c + i) + 4 * t,
                          pack<Element>(sums[c][i][2 * half] * unscale, sums[c][i][2 * half + 1] * unscale));
    }
  }

  /// Stores the warp's rows of dq and dk, which are in the places of q and k.
  __device__ __forceinline__ void store(int n) const {
    constexpr int kPieces = kRows / 8, kRowsAtOnce = 32 / kPieces;
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int piece = lane % kPieces;
    each_block<Shared::kWarps>(warp, [&](int block) {
      const int64_t first = first_of(n, block) + lane / kPieces;
      const int left = place.row + 8 * piece < p.rows ? static_cast<int>(min(p.length - first, int64_t{kBlock})) : 0;
      const int64_t step = static_cast<int64_t>(p.heads) * p.rows * 2;
      int64_t to = (((place.b * p.length + first) * p.heads + place.h) * p.rows + place.row + 8 * piece) * 2;
      const uint32_t row = stage + ptx::swizzled_chunk<kRows>(kBlock * block + lane / kPieces, piece);
#pragma unroll
      for (int i = 0; i < kBlock; i += kRowsAtOnce, to += kRowsAtOnce * step) {
        const uint32_t from = rows_below<kRows>(row, i);
        const uint4 dq = ptx::load_words(from), dk = ptx::load_words(from + Shared::kKey);
        if (i >= left) continue;
        if (p.grad_query) *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_query) + to) = dq;
        *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_key) + to) = dk;
      }
    });
    __syncwarp();
  }
};

}  // namespace lethe::matrix_state
