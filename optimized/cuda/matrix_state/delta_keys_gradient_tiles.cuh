#pragma once
// What delta_keys_gradients.cuh reads, as tiles of float16 in shared memory and operands in registers, and the pairs of a chunk's tokens.

#include <cstring>

#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/matrix_state/delta_keys_parts.cuh"
#include "optimized/cuda/matrix_state/vector_chunk.cuh"
#include "optimized/cuda/ptx/prefetch.cuh"

namespace lethe::matrix_state {

template <int kColumns>
struct DeltaKeyGradientMemory {
  struct Small {
    float beta[kChunk], gradient_unit[kChunk], own[kChunk];
    float largest[2][kWarps];
  };
  static constexpr int kTile = kColumns / 64 * kPanel, kQuery = 0, kKey = kPanel, kGradient = 2 * kPanel,
                       kResidual = kGradient + kTile, kWritten = kResidual + kTile, kPairs = kWritten + kTile;
  /// Of a warp, what a lane holds of left operands: of halves of 16 the readers and keys of four blocks, the second reader of blocks 1 and 3, and of
  /// halves of 32 the same, the second reader of blocks 2 and 3. And of each channel the products of its gates.
  static constexpr int kOperands = kPairs + 2 * kPanel, kProducts = kOperands + kWarps * 12 * 512,
                       kSmall = kProducts + kWarps * 4 * 256, kBytes = kSmall + static_cast<int>(sizeof(Small));
};

/// All threads: until all columns of a head's chunk are swept from the last token back. Below 9.0 the sweep has ended.
__device__ __forceinline__ void wait_for_sweep(const DeltaKeyGradients& p, unsigned head, unsigned chunk) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    const int wanted = p.chunks - static_cast<int>(chunk);
    for (int i = 0; i < p.sweeps; ++i)
      while (ptx::load_acquire(&p.arrays.swept[int64_t{1} * head * p.sweeps + i]) < wanted) __nanosleep(100);
  }
  __syncthreads();
#endif
}

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

  // The warp's channels g and g + 8.
  __device__ __forceinline__ int channel_of(int half) const { return 64 * tile + 16 * warp + lane / 4 + 8 * half; }
  /// The logarithms of eight tokens' gates, zeros outside. Without a branch, so that many are in flight.
  __device__ __forceinline__ void fetch_gates(float (&to)[4], int eight) const {
    const int last = static_cast<int>(min(p.length - 1 - first, static_cast<int64_t>(kChunk - 1)));
    const float* const of_first = static_cast<const float*>(p.gate.data) + b * p.gate.batch_stride +
                                  first * p.gate.token_stride + h * p.gate.head_stride;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = 8 * eight + 2 * (lane % 4) + e;
      const float* const row = of_first + min(token, last) * p.gate.token_stride;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = channel_of(half);
        const float log = load_global(row + min(channel, p.rows - 1));
        to[2 * half + e] = token <= last && channel < p.rows ? log : 0.0f;
      }
    }
  }

  /// Begins to bring what comes after the pairs: a thread half a token's gates, and of each of its warp's channels' parts of states 128 bytes.
  __device__ __forceinline__ void prefetch() const {
    const int64_t token = min(first + threadIdx.x / 2, p.length - 1);
    const int channel = min(64 * tile + 32 * (static_cast<int>(threadIdx.x) % 2), p.rows - 1);
    ptx::prefetch(static_cast<const float*>(p.gate.data) + b * p.gate.batch_stride + token * p.gate.token_stride +
                  h * p.gate.head_stride + channel);
    if (lane / 4 >= kSteps) return;
    const int64_t part = ((index * kSteps + lane / 4) * (kRows / 16) + 4 * tile + warp) * 32 + lane % 4 * 8;
    ptx::prefetch(p.arrays.before + part);
    ptx::prefetch(p.arrays.after + part);
  }

  /// The units of the sweeps' arrays, a lane one: of array lane / 8 (residual, written, before, after) that of warp lane % 8, as what words of that
  /// unit are multiplied with to have the largest one of the array, a power of two of at most 1.
  struct Units {
    float largest;
    uint32_t ratio;
    __device__ __forceinline__ float common(int array) const { return __shfl_sync(kAllLanes, largest, 8 * array); }
    __device__ __forceinline__ uint32_t change(int array, int w) const {
      return __shfl_sync(kAllLanes, ratio, 8 * array + w);
    }
  };
  __device__ __forceinline__ float fetch_unit() const {
    const DeltaKeyArrays& of = p.arrays;
    const float* const from =
        lane < 16 ? (lane < 8 ? of.residual_unit : of.written_unit) : (lane < 24 ? of.before_unit : of.after_unit);
    return from[index * kSteps + lane % kSteps];
  }
  __device__ __forceinline__ static Units units_of(float own) {
    float largest = own;
#pragma unroll
    for (int step = 1; step < 8; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    const float ratio = own * reciprocal_of_power(largest);
    return {largest, pack<__half>(ratio, ratio)};
  }
  __device__ __forceinline__ static uint32_t change_unit(uint32_t word, uint32_t ratio) {
    const __half2 product = __hmul2(halves(word), halves(ratio));
    uint32_t changed;
    memcpy(&changed, &product, sizeof changed);
    return changed;
  }
  __device__ __forceinline__ static void to_words(uint32_t (&words)[4], const uint4& four) {
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  }

  /// An array of columns by tokens, of each of this warp's kSteps / kWarps sixteens of columns and 16 tokens. Loads come before any store, so that
  /// all of a kernel's are in flight at once.
  using TokenWords = uint4[kSteps / kWarps][kWarps];
  __device__ __forceinline__ void fetch_tokens(TokenWords& to, const uint4* from) const {
#pragma unroll
    for (int i = 0; i < kSteps / kWarps; ++i)
#pragma unroll
      for (int k = 0; k < kWarps; ++k) to[i][k] = from[((index * kSteps + warp + i * kWarps) * kWarps + k) * 32 + lane];
  }
  /// These to a tile of tokens by columns, divided by the unit that is returned.
  __device__ __forceinline__ float store_tokens(const TokenWords& from, const Units& units, int array,
                                                int offset) const {
#pragma unroll
    for (int n = 0; n < kSteps / kWarps; ++n) {
      const int w = warp + n * kWarps;
      const uint32_t ratio = units.change(array, w);
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        uint32_t words[4];
        to_words(words, from[n][k]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ptx::store_word(at(offset) + tile_piece(16 * k + 8 * (i / 2) + lane / 4, 2 * w + i % 2) + lane % 4 * 4,
                          ptx::transposed(change_unit(words[i], ratio)));
      }
    }
    return units.common(array);
  }

  /// A state's rows of this warp's channels as left operands, divided by the unit that is returned.
  __device__ __forceinline__ float load_state(uint32_t (&to)[kSteps][4], const uint4* from, const Units& units,
                                              int array) const {
#pragma unroll
    for (int w = 0; w < kSteps; ++w) {
      uint32_t words[4];
      to_words(words, from[((index * kSteps + w) * (kRows / 16) + 4 * tile + warp) * 32 + lane]);
      const uint32_t ratio = units.change(array, w);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[w][i % 2 * 2 + i / 2] = ptx::transposed(change_unit(words[i], ratio));
    }
    return units.common(array);
  }

  /// This warp's 16 tokens of the gradient of the values.
  static constexpr int kPieces = kColumns / 8, kAtOnce = 32 / kPieces;  ///< of a row, and rows at once
  using GradientRows = uint4[16 / kAtOnce];
  __device__ __forceinline__ void fetch_gradient(GradientRows& rows) const {
    const int piece = lane % kPieces;
    const char* const from =
        static_cast<const char*>(p.grad_values.data) +
        (b * p.grad_values.batch_stride + h * p.grad_values.head_stride + (8 * piece < p.columns ? 8 * piece : 0)) * 2;
#pragma unroll
    for (int i = 0; i < 16 / kAtOnce; ++i) {
      const int64_t token = first + 16 * warp + kAtOnce * i + lane / kPieces;
      rows[i] = load_row(from, token, p.grad_values.token_stride, 8 * piece < p.columns);
    }
  }
  /// 16 bytes of a token's row, zeros past the end; the address is one inside in any case.
  __device__ __forceinline__ uint4 load_row(const char* from, int64_t token, int64_t stride, bool inside) const {
    const uint4 row = *reinterpret_cast<const uint4*>(from + min(token, p.length - 1) * stride * 2);
    return token < p.length && inside ? row : uint4{0, 0, 0, 0};
  }
  /// These to their tile, divided by their units.
  __device__ __forceinline__ void store_gradient(const GradientRows& rows) const {
    const int piece = lane % kPieces;
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

  /// This warp's 16 tokens of 64 channels of q and k.
  using Rows = uint4[2][4];
  __device__ __forceinline__ void fetch_rows(Rows& rows) const {
    const int channel = 64 * tile + 8 * (lane % 8);
    const bool inside = channel < p.rows;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const Operand& of = which ? p.key : p.query;
      const char* const from =
          static_cast<const char*>(of.data) + (b * of.batch_stride + h * of.head_stride + (inside ? channel : 0)) * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        rows[which][i] = load_row(from, first + 16 * warp + 4 * i + lane / 8, of.token_stride, inside);
    }
  }
  /// These to their tiles, divided by the unit that is returned. All threads.
  __device__ __forceinline__ float store_rows_of(const Rows& rows) const {
    const int piece = lane % 8;
    float largest = 0.0f;
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int i = 0; i < 4; ++i) largest = fmaxf(largest, largest_of_words(rows[which][i]));
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
