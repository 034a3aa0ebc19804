#pragma once
// What delta_keys_gradients.cuh reads, as tiles of float16 in shared memory and operands in registers, and the pairs of a chunk's tokens.

#include "optimized/cuda/matrix_state/delta_keys_parts.cuh"

namespace lethe::matrix_state {

template <int kColumns>
struct DeltaKeyGradientMemory {
  struct Small {
    float beta[kChunk], gradient_unit[kChunk], own[kChunk];
    float largest[2][kWarps];
  };
  static constexpr int kTile = kColumns / 64 * kPanel, kQuery = 0, kKey = kPanel, kGradient = 2 * kPanel,
                       kResidual = kGradient + kTile, kWritten = kResidual + kTile, kPairs = kWritten + kTile;
  /// Of a warp, what a lane holds of left operands: of halves of 16 the readers and keys of four blocks, the second reader of blocks 1 and 3, and of halves of
  /// 32 the same, the second reader of blocks 2 and 3. And of each channel the products of its gates.
  static constexpr int kOperands = kPairs + 2 * kPanel, kProducts = kOperands + kWarps * 12 * 512,
                       kSmall = kProducts + kWarps * 4 * 256, kBytes = kSmall + static_cast<int>(sizeof(Small));
};

template <typename Element, int kRows, int kColumns>
struct DeltaKeyGradientTiles {
  using Memory = DeltaKeyGradientMemory<kColumns>;
  using Small = typename Memory::Small;
  static constexpr int kSteps = kColumns / 16;  ///< warps of the sweeps
  const DeltaKeyGradients& p;
  char* const memory;
  const int warp, lane;
  const int64_t b, h, first;  ///< first: the chunk's first token
  const int64_t index;        ///< of the chunk among all
  const int tile;             ///< of 64 channels

  __device__ __forceinline__ Small& small() const { return *reinterpret_cast<Small*>(memory + Memory::kSmall); }
  __device__ __forceinline__ uint32_t at(int offset) const { return ptx::shared_address(memory) + offset; }

  /// The largest of all warps' units of an array, by which float16 is then divided.
  __device__ __forceinline__ float common_unit(const float* units) const {
    float most = units[index * kSteps];
#pragma unroll
    for (int i = 1; i < kSteps; ++i) most = fmaxf(most, units[index * kSteps + i]);
    return most;
  }
  /// Words of a sweep's warp, of its unit, as of a common one.
  __device__ __forceinline__ static void change_unit(uint32_t (&words)[4], float own, float common) {
    const __half2 ratio = __float2half2_rn(own / common);
#pragma unroll
    for (uint32_t& word : words) {
      const float2 two = unpack<__half>(word), factor = __half22float2(ratio);
      word = pack<__half>(two.x * factor.x, two.y * factor.y);
    }
  }
  __device__ __forceinline__ static void to_words(uint32_t (&words)[4], const uint4& four) {
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  }

  /// An array of columns by tokens to a tile of tokens by columns, divided by the unit that is returned.
  __device__ __forceinline__ float load_tokens(const uint4* from, const float* units, int offset) const {
    const float common = common_unit(units);
#pragma unroll
    for (int w = warp; w < kSteps; w += kWarps)
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        uint32_t words[4];
        to_words(words, from[((index * kSteps + w) * kWarps + k) * 32 + lane]);
        change_unit(words, units[index * kSteps + w], common);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ptx::store_word(at(offset) + tile_piece(16 * k + 8 * (i / 2) + lane / 4, 2 * w + i % 2) + lane % 4 * 4,
                          ptx::transposed(words[i]));
      }
    return common;
  }

  /// A state's rows of this warp's channels as left operands, divided by the unit that is returned.
  __device__ __forceinline__ float load_state(uint32_t (&to)[kSteps][4], const uint4* from, const float* units) const {
    const float common = common_unit(units);
#pragma unroll
    for (int w = 0; w < kSteps; ++w) {
      uint32_t words[4];
      to_words(words, from[((index * kSteps + w) * (kRows / 16) + 4 * tile + warp) * 32 + lane]);
      change_unit(words, units[index * kSteps + w], common);
      to[w][0] = ptx::transposed(words[0]), to[w][1] = ptx::transposed(words[2]);
      to[w][2] = ptx::transposed(words[1]), to[w][3] = ptx::transposed(words[3]);
    }
    return common;
  }

  /// This warp's 16 tokens of the gradient of the values, divided by their units.
  __device__ __forceinline__ void load_gradient() const {
    constexpr int kPieces = kColumns / 8, kAtOnce = 32 / kPieces;
    const int piece = lane % kPieces;
    uint4 rows[16 / kAtOnce];
#pragma unroll
    for (int i = 0; i < 16 / kAtOnce; ++i) {
      const int64_t token = first + 16 * warp + kAtOnce * i + lane / kPieces;
      rows[i] = {0, 0, 0, 0};
      if (token < p.length && 8 * piece < p.columns)
        rows[i] = *reinterpret_cast<const uint4*>(static_cast<const char*>(p.grad_values.data) +
                                                  (b * p.grad_values.batch_stride + token * p.grad_values.token_stride +
                                                   h * p.grad_values.head_stride + 8 * piece) *
                                                      2);
    }
#pragma unroll
    for (int i = 0; i < 16 / kAtOnce; ++i) {
      const int row = 16 * warp + kAtOnce * i + lane / kPieces;
      float largest = largest_of_words(rows[i]);
#pragma unroll
      for (int step = 1; step < kPieces; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
      const float unit = row_unit(largest);
      ptx::store_words(at(Memory::kGradient) + tile_piece(row, piece),
                       scaled_words(rows[i], reciprocal_of_power(unit) * kRowScale));
      if (piece == 0) small().gradient_unit[row] = unit * (p.scale / kRowScale);
    }
  }

  __device__ __forceinline__ static float largest_of_words(const uint4& x) {
    float largest = 0.0f;
    for (uint32_t word : {x.x, x.y, x.z, x.w}) {
      const float2 two = unpack<Element>(word);
      largest = fmaxf(largest, fmaxf(fabsf(two.x), fabsf(two.y)));
    }
    return largest;
  }
  __device__ __forceinline__ static uint4 scaled_words(const uint4& x, float factor) {
    const auto scaled = [&](uint32_t word) {
      const float2 two = unpack<Element>(word);
      return pack<__half>(two.x * factor, two.y * factor);
    };
    return {scaled(x.x), scaled(x.y), scaled(x.z), scaled(x.w)};
  }

  /// The largest of a number of every thread.
  __device__ __forceinline__ float largest_of_all(float number, int which) const {
    number = __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(number)));
    if (lane == 0) small().largest[which][warp] = number;
    __syncthreads();
    const float(&of)[kWarps] = small().largest[which];
    return fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3]));
  }

  /// The tiles of 64 channels of q and k, divided by the unit that is returned.
  __device__ __forceinline__ float load_rows() const {
    uint4 rows[2][4];
    const int piece = lane % 8, channel = 64 * tile + 8 * piece;
    float largest = 0.0f;
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Operand& from = which ? p.key : p.query;
        const int64_t token = first + 16 * warp + 4 * i + lane / 8;
        uint4& row = rows[which][i];
        row = {0, 0, 0, 0};
        if (token < p.length && channel < p.rows)
          row = *reinterpret_cast<const uint4*>(
              static_cast<const char*>(from.data) +
              (b * from.batch_stride + token * from.token_stride + h * from.head_stride + channel) * 2);
        largest = fmaxf(largest, largest_of_words(row));
      }
    const float unit = row_unit(largest_of_all(largest, 0));
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ptx::store_words(at(which ? Memory::kKey : Memory::kQuery) + tile_piece(16 * warp + 4 * i + lane / 8, piece),
                         scaled_words(rows[which][i], reciprocal_of_power(unit) * kRowScale));
    return unit * (1.0f / kRowScale);
  }

  /// M and Z of this warp's 16 rows to their tiles, divided by the unit that is returned, and M's diagonal.
  __device__ __forceinline__ float multiply_pairs(float residual_unit, float written_unit) const {
    const int g = lane / 4, t = lane % 4, i0 = 16 * warp + g;
    Sums sums[2] = {};
#pragma unroll 2
    for (int k = 0; k < kSteps; ++k) {
      uint32_t read[4], corrected[4];
      load_left(read, at(Memory::kGradient), warp, k, lane);
      load_left(corrected, at(Memory::kWritten), warp, k, lane);
#pragma unroll
      for (int j = 0; j < kWarps; ++j) {
        if (j > warp) continue;
        uint32_t right[4];
        load_right_columns(right, at(Memory::kResidual), k, j, lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::multiply_add<__half>(sums[0][2 * j + i], read, right[2 * i], right[2 * i + 1]);
          ptx::multiply_add<__half>(sums[1][2 * j + i], corrected, right[2 * i], right[2 * i + 1]);
        }
      }
    }
    float largest = 0.0f;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      const float2 beta = *reinterpret_cast<const float2*>(&small().beta[8 * c + 2 * t]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = i0 + 8 * (e / 2), column = 8 * c + 2 * t + e % 2;
        const float weight = (e % 2 ? beta.y : beta.x) * residual_unit;
        sums[0][c][e] *= weight * small().gradient_unit[row];
        sums[1][c][e] *= -weight * written_unit;
        if (column == row) small().own[row] = sums[0][c][e];
        if (column >= row) sums[0][c][e] = sums[1][c][e] = 0.0f;
        largest = fmaxf(largest, fmaxf(fabsf(sums[0][c][e]), fabsf(sums[1][c][e])));
      }
    }
    const float unit = row_unit(largest_of_all(largest, 1)), inverse = reciprocal_of_power(unit) * kRowScale;
    const float factor[2] = {inverse, inverse};
#pragma unroll
    for (int r = 0; r < 2; ++r) store_rows<__half>(sums[r], factor, at(Memory::kPairs + r * kPanel), warp, lane);
    return unit * (1.0f / kRowScale);
  }
};

}  // namespace lethe::matrix_state
