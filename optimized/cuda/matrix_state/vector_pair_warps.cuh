#pragma once
// The warps of vector_gradient.cuh that copy, multiply B and store.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "optimized/cuda/matrix_state/vector_chunk.cuh"

namespace lethe::matrix_state {

template <int kColumns, bool kColumnGate>
struct VectorGradientShared {
  static constexpr int kStages = 2;
  static constexpr int kKey = kTokens * kRowTile * 2, kGradValue = 2 * kKey,
                       kValue = kGradValue + kTokens * kColumns * 2, kGates = kValue + kTokens * kColumns * 2,
                       kStage = kGates + kTokens * kGateStride;
  static constexpr int kPairs = kStages * kStage;
  /// Of a warp and block of 16 tokens, what a lane holds of a left operand, three of them; and of each row, the products of its gates.
  static constexpr int kOperands = kPairs + kStages * PairRecord::kBytes, kProducts = kOperands + 4 * 3 * 4 * 512;
  static constexpr int kBytes = kProducts + 4 * 4 * 256;
  /// The PairRecord of chunk n.
  __device__ __forceinline__ static uint32_t pairs(uint32_t shared, int n) {
    return shared + kPairs + n % kStages * PairRecord::kBytes;
  }
};

/// A warp of those that copy, multiply B and store: 16 tokens of every chunk.
template <typename Element, int kColumns, bool kColumnGate>
struct VectorPairs {
  using Shared = VectorGradientShared<kColumns, kColumnGate>;
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
    if constexpr (kColumnGate) {
      const char* record = p.pairs + (place.head * place.chunks + place.chunks - 1 - n) * PairRecord::kBytes;
      for (int at = (32 * pw + lane) * 16; at < PairRecord::kEnd; at += 128 * 16)
        ptx::copy_chunk(Shared::pairs(shared, n) + at, record + at);
    }
    copy_rows<4, kRowTile / 4>(p.key_gate, place, first, p.length, place.row, p.rows, lane,
                               [&](int r, int piece, int further) {
                                 return stage + Shared::kGates + (row + r + further) * kGateStride + piece * 16;
                               });
  }

  /// B of rows 16·pw … of chunk n and the columns up to them.
  __device__ __forceinline__ void multiply(int n) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const uint32_t pairs = Shared::pairs(shared, n);
    const int g = lane / 4, t = lane % 4;
    float sums[4][2][4];
    const uint32_t left_at =
        stage + Shared::kGradValue + ptx::swizzled_chunk<kColumns>(kBlock * pw + lane % 16, lane / 16);
    const uint32_t right_at =
        stage + Shared::kValue + ptx::swizzled_chunk<kColumns>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
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
      const float unit = power_below(__uint_as_float(__reduce_max_sync(kEveryLane, __float_as_uint(largest))));
      if (lane == 0) ptx::store_word(pairs + PairRecord::kUnits + pw * 4, __float_as_uint(unit));
      unscale = inverse_of_power(unit);
    }
    // The diagonal in float: row 8i + g of the block, column 2t + e.
    if (g / 2 == t) {
      const uint32_t to = pairs + PairRecord::kDiagonal + (kBlock * pw + g) * 4;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (c == pw) {
          ptx::store_word(to, __float_as_uint(g % 2 ? sums[c][0][1] : sums[c][0][0]));
          ptx::store_word(to + 32, __float_as_uint(g % 2 ? sums[c][1][3] : sums[c][1][2]));
        }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (c > pw) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::store_word(pairs + ptx::swizzled_chunk<kTokens>(kBlock * pw + g + 8 * half, 2 * c + i) + 4 * t,
                          pack<Element>(sums[c][i][2 * half] * unscale, sums[c][i][2 * half + 1] * unscale));
    }
  }

  /// Stores the warp's rows of dq and dk, which are in the places of q and k.
  __device__ __forceinline__ void store(int n) const {
    const uint32_t stage = shared + n % Shared::kStages * Shared::kStage;
    const int piece = lane % 8;
    int64_t token = first_of(n) + lane / 8;
#pragma unroll
    for (int i = 0; i < kBlock; i += 4, token += 4) {
      const uint32_t from =
          stage + rows_below<kRowTile>(ptx::swizzled_chunk<kRowTile>(kBlock * pw + lane / 8, piece), i);
      const uint4 dq = ptx::load_words(from), dk = ptx::load_words(from + Shared::kKey);
      if (token >= p.length || place.row + 8 * piece >= p.rows) continue;
      const int64_t to = (((place.b * p.length + token) * p.heads + place.h) * p.rows + place.row + 8 * piece) * 2;
      if (p.grad_query) *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_query) + to) = dq;
      *reinterpret_cast<uint4*>(static_cast<char*>(p.grad_key) + to) = dk;
    }
    __syncwarp();
  }
};

}  // namespace lethe::matrix_state
