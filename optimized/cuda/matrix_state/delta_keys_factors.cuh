#pragma once
// The gates of a warp's 16 tokens as factors of its rows (delta_keys_tokens.cuh). A lane multiplies the gates of two channels and eight tokens, so
// that a product over a run of tokens needs no other lane; through shared memory factors reach the lanes that have the rows.

#include <cstdint>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/delta_parts.cuh"
#include "optimized/cuda/matrix_state/vector_parts.cuh"

namespace lethe::matrix_state {

/// Two floats of global memory, as load_global4.
__device__ __forceinline__ float2 load_global2(const float* address) {
  float2 v;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(address));
  return v;
}

/// Of 32 channels. A warp stores them, then loads them; lane 4g + t has rows g and g + 8.
struct DeltaKeyFactors {
  /// A row's factor in the halvings of 1, 2 and 4 tokens; its gates since its eight began; those after it to the eight's end; and across the other
  /// eight, of a row of the first one to the end of all 16 tokens, of the second one since their beginning.
  enum Table { kOfOne, kOfTwo, kOfFour, kUp, kDown, kAcross, kTables };
  /// A table has 64 bytes a row. In the second eight odd rows come before even ones, so that rows of both eights are stored to different banks.
  static constexpr int kRow = 64, kEight = 8 * kRow, kTable = 2 * kEight, kBytes = kTables * kTable;
  const int lane;
  /// Of the lane: from where even and odd tokens of its eight are stored; and channels 8t … of rows g and g + 8.
  const uint32_t even, odd, near, far;

  __device__ __forceinline__ DeltaKeyFactors(uint32_t tables, int lane)
      : lane(lane), even(tables + lane / 16 * (kEight + kRow) + lane % 16 * 4), odd(even - lane / 16 * (2 * kRow)),
        near(tables + lane * 16), far((near ^ kRow) + kEight) {}

  /// log f of the lane's channels of tokens 8·(lane / 16) ….
  using Logs = float2[8];

  /// Before the first store: the factors that are 1 of all gates.
  __device__ __forceinline__ void begin() const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) put(kOfOne, i, {1.0f, 1.0f});
    put(kOfTwo, 1, {1.0f, 1.0f});
    put(kOfTwo, 5, {1.0f, 1.0f});
    put(kOfFour, 3, {1.0f, 1.0f});
    put(kDown, 7, {1.0f, 1.0f});
  }

  /// Returns log₂ of the product of each channel's 16 gates.
  __device__ __forceinline__ float2 store(const Logs& logs) const {
    float2 f[8], two[4], four[2], sum = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 log = {logs[i].x * kLog2e, logs[i].y * kLog2e};
      sum = {sum.x + log.x, sum.y + log.y};
      f[i] = {exp2_approximate(log.x), exp2_approximate(log.y)};
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) two[i] = product(f[2 * i], f[2 * i + 1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) four[i] = product(two[2 * i], two[2 * i + 1]);
    const float2 first = product(f[1], two[1]), last = product(two[2], f[6]), eight = product(four[0], four[1]),
                 other = {__shfl_xor_sync(kAllLanes, eight.x, 16), __shfl_xor_sync(kAllLanes, eight.y, 16)};
#pragma unroll
    for (int i = 1; i < 8; i += 2) put(kOfOne, i, f[i]);
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      put(kOfTwo, i, f[i + 1]);
      put(kOfTwo, i + 2, f[i + 2]);
      put(kOfTwo, i + 3, two[i / 2 + 1]);
    }
    put(kOfFour, 0, first);
    put(kOfFour, 1, two[1]);
    put(kOfFour, 2, f[3]);
    put(kOfFour, 4, f[4]);
    put(kOfFour, 5, two[2]);
    put(kOfFour, 6, last);
    put(kOfFour, 7, four[1]);
    const float2 up[8] = {f[0],
                          two[0],
                          product(two[0], f[2]),
                          four[0],
                          product(four[0], f[4]),
                          product(four[0], two[2]),
                          product(four[0], last),
                          eight},
                 down[8] = {product(first, four[1]),
                            product(two[1], four[1]),
                            product(f[3], four[1]),
                            four[1],
                            product(f[5], two[3]),
                            two[3],
                            f[7],
                            {1.0f, 1.0f}};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      put(kUp, i, up[i]);
      if (i < 7) put(kDown, i, down[i]);
      put(kAcross, i, product(lane < 16 ? down[i] : up[i], other));
    }
    return {sum.x + __shfl_xor_sync(kAllLanes, sum.x, 16), sum.y + __shfl_xor_sync(kAllLanes, sum.y, 16)};
  }

  /// Row g (half 0) or g + 8, channels 8t ….
  __device__ __forceinline__ uint4 load(Table table, int half) const {
    return ptx::load_words((half ? far : near) + table * kTable);
  }

 private:
  /// Of token 8·(lane / 16) + i.
  __device__ __forceinline__ void put(Table table, int i, float2 two) const {
    ptx::store_word((i % 2 ? odd : even) + table * kTable + i * kRow, pack<__half>(two.x, two.y));
  }
};

}  // namespace lethe::matrix_state
