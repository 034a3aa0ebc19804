#pragma once
// A warp's 16 tokens of a chunk that delta_keys_prepare.cuh prepares: their rows, and their gates' products.

#include <cstring>
#include <numbers>
#include <type_traits>

#include "optimized/cuda/matrix_state/delta_keys_parts.cuh"

namespace lethe::matrix_state {

template <int kRows>
struct DeltaKeyMemory {
  struct Small {
    alignas(16) float totals[kWarps][kRows];  ///< products of 16 tokens' gates
    uint32_t before[kWarps][kRows / 2],
        after[kWarps][kRows / 2];  ///< in float16, those of the blocks before one, and after it
    float key_unit[kChunk], query_unit[kChunk], strength[kChunk];
  };
  /// A warp's own rows of the query lie where its blocks of the solution come, and of the read keys where it solves its block: both are read no more
  /// by then, and other warps have never read them.
  static constexpr int kTile = kRows / 64 * kPanel, kReadKey = kTile, kWriteKey = 2 * kTile, kSolution = 0,
                       kScratch = kReadKey, kScratchStride = kPanel / kWarps, kSmall = 3 * kTile,
                       kBytes = kSmall + static_cast<int>(sizeof(Small));
};

/// A lane's two tokens: 2n and 2n + 1 of its warp's 16, n = delta_pair(lane / 4). The two lowest bits change places, so that rows of a tile that lanes meet at
/// once are in different banks.
__device__ __forceinline__ int delta_pair(int g) { return (g & 4) | (g & 1) << 1 | (g >> 1 & 1); }

/// A warp's 16 tokens, lane 4g + t: two of them, of step s channels 32s + 8t ….
template <typename Element, int kRows>
struct DeltaKeyRows {
  static constexpr int kSteps = kRows / 32;
  using Memory = DeltaKeyMemory<kRows>;
  using Record = DeltaKeyRecord<kRows>;
  using Small = typename Memory::Small;
  const DeltaKeyArguments& p;
  char *const memory, *const record;
  const int block, lane;
  const int64_t b, h, first;  ///< first: the block's first token
  const int inside;           ///< tokens of the block up to the last one of all; none: 0 or less

  __device__ __forceinline__ Small& small() const { return *reinterpret_cast<Small*>(memory + Memory::kSmall); }
  __device__ __forceinline__ uint32_t tile(int offset) const { return ptx::shared_address(memory) + offset; }
  /// Of the block: the lane's token `half`, 0 or 1.
  __device__ __forceinline__ int own(int half) const { return 2 * delta_pair(lane / 4) + half; }
  /// Where a tile has eight channels of it: the second token's row follows the first one's, and its pieces have changed places by one.
  __device__ __forceinline__ uint32_t own_piece(int half, int s) const {
    const uint32_t piece = tile_piece(16 * block + own(0), lane % 4) ^ s % 2 * 64 ^ half * 16;
    return piece + s / 2 * kPanel + half * 128;
  }

  /// Where an operand, of numbers of kBytes, has a token's channel.
  template <int kBytes>
  __device__ __forceinline__ const char* at(const Operand& from, int64_t token, int channel) const {
    return static_cast<const char*>(from.data) +
           (b * from.batch_stride + token * from.token_stride + h * from.head_stride + channel) * kBytes;
  }

  using OwnRows = uint4[2][kSteps];
  /// Two rows' elements, zeros outside.
  __device__ __forceinline__ void load_rows(const Operand& from, OwnRows& to) const {
    const char* row = at<2>(from, first + own(0), 8 * (lane % 4));
#pragma unroll
    for (int half = 0; half < 2; ++half, row += from.token_stride * 2) {
      const int channels = own(half) < inside ? p.rows - 8 * (lane % 4) : 0;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        to[half][s] = 32 * s < channels ? *reinterpret_cast<const uint4*>(row + 64 * s) : uint4{0, 0, 0, 0};
    }
  }
  __device__ __forceinline__ const char* own_gates() const { return at<4>(p.gate, first + own(0), 8 * (lane % 4)); }
  /// The logarithms of the lane's gates in step s, zeros outside and after the last step. `row`: own_gates().
  __device__ __forceinline__ void load_gates(float (&to)[2][8], const char* row, int s) const {
    const int tokens = 32 * s + 8 * (lane % 4) < p.rows ? inside - own(0) : 0;
    row += 128 * s;
#pragma unroll
    for (int half = 0; half < 2; ++half, row += p.gate.token_stride * 4)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
        if (half < tokens) four = load_global4(reinterpret_cast<const float*>(row) + 4 * i);
        to[half][4 * i] = four.x, to[half][4 * i + 1] = four.y, to[half][4 * i + 2] = four.z,
                     to[half][4 * i + 3] = four.w;
      }
  }

  /// The products of the block's gates, of four channels a lane, to other warps.
  __device__ __forceinline__ void multiply_gates() const {
    constexpr int kLanes = kRows / 4, kAtOnce = 32 / kLanes;
    const int channel = 4 * (lane % kLanes);
    const char* row = at<4>(p.gate, first + lane / kLanes, channel);
    const int tokens = channel < p.rows ? inside - lane / kLanes : 0;
    float4 gates[16 / kAtOnce], sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 16 / kAtOnce; ++i, row += p.gate.token_stride * (4 * kAtOnce)) {
      gates[i] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (kAtOnce * i < tokens) gates[i] = *reinterpret_cast<const float4*>(row);
    }
#pragma unroll
    for (const float4& x : gates) sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    const auto total = [](float logs) {
      if constexpr (kAtOnce == 2) logs += __shfl_xor_sync(kAllLanes, logs, 16);
      return exp2_approximate(logs * std::numbers::log2e_v<float>);
    };
    *reinterpret_cast<float4*>(&small().totals[block][channel]) = {total(sum.x), total(sum.y), total(sum.z),
                                                                   total(sum.w)};
  }
  /// Of all warps' products: those before and after the block, and all of them to the record.
  __device__ __forceinline__ void multiply_blocks() const {
    const int channel = 4 * (lane % (kRows / 4));
    float total[kWarps][4], before[4] = {1.0f, 1.0f, 1.0f, 1.0f}, after[4] = {1.0f, 1.0f, 1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(&small().totals[i][channel]);
      total[i][0] = x.x, total[i][1] = x.y, total[i][2] = x.z, total[i][3] = x.w;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        before[c] *= i < block ? total[i][c] : 1.0f;
        after[c] *= i > block ? total[i][c] : 1.0f;
      }
    }
    if (block == 0)
      *reinterpret_cast<float4*>(record + Record::kTotals + 4 * channel) = {
          total[0][0] * after[0], total[0][1] * after[1], total[0][2] * after[2], total[0][3] * after[3]};
    *reinterpret_cast<uint2*>(&small().before[block][channel / 2]) = {pack<__half>(before[0], before[1]),
                                                                      pack<__half>(before[2], before[3])};
    *reinterpret_cast<uint2*>(&small().after[block][channel / 2]) = {pack<__half>(after[0], after[1]),
                                                                     pack<__half>(after[2], after[3])};
    __syncwarp();
  }

  /// The lane's part of its two rows to a tile, and their units.
  __device__ __forceinline__ void measure(const OwnRows& rows, int offset, float (&unit)[2]) const {
    using Two = std::conditional_t<std::is_same_v<Element, __nv_bfloat16>, __nv_bfloat162, __half2>;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Two largest = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4& x = rows[half][s];
        for (uint32_t word : {x.x, x.y, x.z, x.w}) {
          word &= 0x7fff7fffu;
          Two two;
          memcpy(&two, &word, 4);
          largest = __hmax2(largest, two);
        }
        ptx::store_words(tile(offset) + own_piece(half, s), x);
      }
      unit[half] = row_unit(quad_max(fmaxf(static_cast<float>(largest.x), static_cast<float>(largest.y))));
    }
  }
};

}  // namespace lethe::matrix_state
