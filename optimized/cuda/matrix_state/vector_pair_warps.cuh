#pragma once
// The copies of vector_gradient.cuh, its product B and its stores: of a chunk's blocks of 16 tokens a warp's share.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

/// What a CTA of vector_gradient has in shared memory, of which an SM has kCtas.
template <int kRows, int kColumns, bool kColumnGate>
struct VectorGradientShared {
  static constexpr int kWarps = kRows / 16, kCtas = (kColumns <= 64 ? 192 : 128) / kRows;
  static constexpr int kKey = kTokens * kRows * 2, kGradValue = 2 * kKey, kValue = kGradValue + kTokens * kColumns * 2;
  static constexpr int kGates = kValue + kTokens * kColumns * 2, kPairs = kGates + kTokens * kRows * 4,
                       kPairBytes = PairRecord::kTotals + (kColumnGate ? kColumns * 4 : 0);
  /// Of a warp's five left operands that wait, what its lanes hold: with 32 rows the first three are where B has nothing, above its blocks of 16 on
  /// the diagonal. And of each row, the products of its gates.
  static constexpr int kWaiting = 5, kInPairs = kRows == 32 ? 3 : 0;
  static constexpr int kOperands = kPairs + kPairBytes, kProducts = kOperands + kWarps * (kWaiting - kInPairs) * 512;
  static constexpr int kBytes = kProducts + kWarps * 4 * 128;
  static_assert(kPairBytes % 16 == 0);
};

/// Byte offset of the gate of a token and row: pairs of tokens have eights of rows exchanged, so that tokens 2t and rows g of a fragment are in
/// different banks.
template <int kRows>
__device__ __forceinline__ uint32_t gate_offset(int token, int row) {
  return (token * kRows + (row ^ (token >> 1 & 3) << 3)) * 4;
}

/// A warp's share of a chunk's tokens: `block` is one of its blocks of 16.
template <typename Element, int kRows, int kColumns, bool kColumnGate>
struct VectorPairs {
  using Shared = VectorGradientShared<kRows, kColumns, kColumnGate>;
  static constexpr bool kHalf = std::is_same_v<Element, __half>;
  const VectorGradientArguments& p;
  const RowTile& place;
  uint32_t shared;
  int warp, lane;

  /// Copies dO and v.
  __device__ __forceinline__ void load_columns() const {
    each_block<Shared::kWarps>(warp, [&](int block) {
      const auto copy = [&](const Operand& from, uint32_t tile) {
        copy_rows<2, kColumns / 8>(from, place, place.first() + kBlock * block, p.length, 0, p.columns, lane,
                                   tile_rows<kColumns>(tile, kBlock * block));
      };
      copy(p.grad_values, shared + Shared::kGradValue);
      copy(p.value, shared + Shared::kValue);
    });
  }

  /// Copies q, k and the gates, and with a gate a column what vector_pairs left.
  __device__ __forceinline__ void load_rows() const {
    if constexpr (kColumnGate) {
      const char* record = p.pairs + (place.head * place.chunks + place.chunk) * PairRecord::kBytes;
#pragma unroll
      for (int i = 0; i < Shared::kPairBytes; i += 2 * kRows * 16) {
        const int at = i + (32 * warp + lane) * 16;
        if (at < Shared::kPairBytes && PairRecord::used(at)) ptx::copy_chunk(shared + Shared::kPairs + at, record + at);
      }
    }
    each_block<Shared::kWarps>(warp, [&](int block) {
      const int64_t first = place.first() + kBlock * block;
      const auto copy = [&](const Operand& from, uint32_t tile) {
        copy_rows<2, kRows / 8>(from, place, first, p.length, place.row, p.rows, lane,
                                tile_rows<kRows>(tile, kBlock * block));
      };
      copy(p.query, shared);
      copy(p.key, shared + Shared::kKey);
      copy_rows<4, kRows / 4>(
          p.key_gate, place, first, p.length, place.row, p.rows, lane, [&](int r, int piece, int further) {
            return shared + Shared::kGates + gate_offset<kRows>(kBlock * block + r + further, 4 * piece);
          });
    });
  }

  /// B of the warp's rows and the columns up to them.
  __device__ __forceinline__ void multiply() const {
    each_block<Shared::kWarps>(warp, [&](int block) { multiply_block(block); });
  }

  __device__ __forceinline__ void multiply_block(int block) const {
    const uint32_t pairs = shared + Shared::kPairs;
    const int g = lane / 4, t = lane % 4;
    float sums[4][2][4];
    const uint32_t left_at =
        shared + Shared::kGradValue + ptx::swizzled_chunk<kColumns>(kBlock * block + lane % 16, lane / 16);
    const uint32_t right_at =
        shared + Shared::kValue + ptx::swizzled_chunk<kColumns>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    uint32_t left[kColumns / 16][4];
#pragma unroll
    for (int k = 0; k < kColumns / 16; ++k) ptx::load_matrices(left[k], steps_right<kColumns>(left_at, k));
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
        uint32_t right[4];
        ptx::load_matrices(right, steps_right<kColumns>(right_at, k) + 16 * c * (kColumns * 2));
        ptx::multiply_add<Element>(sums[c][0], left[k], right[0], right[1]);
        ptx::multiply_add<Element>(sums[c][1], left[k], right[2], right[3]);
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

  /// Stores the warp's rows of dq and dk, which are in the places of q and k; and of d log f, which are in that of the gates but for what the tokens
  /// of a block have in common.
  __device__ __forceinline__ void store() const {
    each_block<Shared::kWarps>(warp, [&](int block) {
      store_rows<2>(block, [&](int row, int piece, int further, bool inside, int64_t to) {
        const uint32_t from = rows_below<kRows>(shared + ptx::swizzled_chunk<kRows>(row, piece), further);
        const uint4 dq = ptx::load_words(from), dk = ptx::load_words(from + Shared::kKey);
        if (inside && p.grad_query) *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_query) + to) = dq;
        if (inside) *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_key) + to) = dk;
      });
      store_rows<4>(block, [&](int row, int piece, int further, bool inside, int64_t to) {
        const uint4 own = ptx::load_words(shared + Shared::kGates + gate_offset<kRows>(row + further, 4 * piece)),
                    common =
                        ptx::load_words(shared + Shared::kProducts + (piece / 4 * 4 + block) * 128 + piece % 4 * 16);
        const auto sum = [](uint32_t x, uint32_t y) { return __uint_as_float(x) + __uint_as_float(y); };
        if (inside)
          *reinterpret_cast<float4*>(reinterpret_cast<char*>(p.grad_key_gate) + to) = {
              sum(own.x, common.x), sum(own.y, common.y), sum(own.z, common.z), sum(own.w, common.w)};
      });
    });
  }

  /// Calls work with each 16 bytes of a block's rows of kElement bytes an element that are the lane's: a row of the chunk, the piece of it, the row's
  /// distance from it, whether there is such a token, and where it is in [B, T, H, rows].
  template <int kElement, typename Work>
  __device__ __forceinline__ void store_rows(int block, Work work) const {
    constexpr int kPieces = kRows * kElement / 16, kRowsAtOnce = 32 / kPieces;
    const int piece = lane % kPieces, row = kBlock * block + lane / kPieces, column = place.row + piece * 16 / kElement;
    const int64_t token = place.first() + row, step = static_cast<int64_t>(p.heads) * p.rows * kElement;
    const int left = column < p.rows ? static_cast<int>(min(p.length - token, int64_t{kBlock})) : 0;
    int64_t to = ((place.b * p.length + token) * p.heads + place.h) * p.rows * kElement + column * kElement;
#pragma unroll
    for (int i = 0; i < kBlock; i += kRowsAtOnce, to += kRowsAtOnce * step) work(row, piece, i, i < left, to);
  }
};

}  // namespace lethe::matrix_state
