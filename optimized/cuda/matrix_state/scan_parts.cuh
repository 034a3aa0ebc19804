#pragma once
// The scan kernels' shared memory, and numbers of any type between it and global memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "optimized/cuda/arithmetic.cuh"
#include "optimized/cuda/matrix_state/scan.hpp"

namespace lethe::matrix_state {

template <int kRows, int kColumns>
struct ScanShape {
  static constexpr int kThreads = kRows * kColumns / 32, kWarps = kThreads / 32;
  static constexpr int kTokens = kWarps <= 4 ? 16 : 8;  // a chunk
  static constexpr int kRowLanes = kRows / 8, kColumnLanes = 32 / kRowLanes;
  static constexpr int kRowPiece = kTokens * kRows / kThreads, kColumnPiece = kTokens * kColumns / kThreads;
};

/// A chunk's inputs, [token][row or column].
template <int kRows, int kColumns>
struct ScanInputs {
  static constexpr int kTokens = ScanShape<kRows, kColumns>::kTokens;
  float query[kTokens][kRows], key[kTokens][kRows], gate[kTokens][kRows];
  float value[kTokens][kColumns], other[kTokens][kColumns], value_gate[kTokens][kColumns];  // other: dO, or m
  float beta[kTokens];
};

template <int kRows, int kColumns>
struct ScanShared {
  using Shape = ScanShape<kRows, kColumns>;
  ScanInputs<kRows, kColumns> inputs;
  float row_sums[Shape::kTokens][kColumns];
  float second_row_sums[Shape::kTokens][kColumns];
  float column_sums[Shape::kWarps][Shape::kTokens][kRows];
  float strength[Shape::kWarps][Shape::kTokens];
};

/// kCount numbers on their way from global memory.
template <int kCount>
struct Raw {
  uint32_t words[kCount];
};

template <int kWords, int kCount>
__device__ void load_words(Raw<kCount>& to, int64_t address) {
  if constexpr (kWords == 8) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.words[0]), "=r"(to.words[1]), "=r"(to.words[2]), "=r"(to.words[3])
                 : "l"(address));
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.words[4]), "=r"(to.words[5]), "=r"(to.words[6]), "=r"(to.words[7])
                 : "l"(address + 16));
  } else if constexpr (kWords == 4) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.words[0]), "=r"(to.words[1]), "=r"(to.words[2]), "=r"(to.words[3])
                 : "l"(address));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(to.words[0]), "=r"(to.words[1]) : "l"(address));
  } else {
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(to.words[0]) : "l"(address));
  }
}

template <int kCount>
__device__ void load_raw(Raw<kCount>& to, const void* from, bool is_float) {
  const int64_t address = __cvta_generic_to_global(from);
  is_float ? load_words<kCount>(to, address) : load_words<kCount / 2>(to, address);
}

template <int kCount>
__device__ void to_floats(const Raw<kCount>& raw, Dtype dtype, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (dtype == Dtype::kFloat32) {
      to[i] = __uint_as_float(raw.words[i]);
    } else {
      const uint32_t word = raw.words[i / 2];
      const float2 pair = dtype == Dtype::kBFloat16 ? unpack<__nv_bfloat16>(word) : unpack<__half>(word);
      to[i] = i % 2 ? pair.y : pair.x;
    }
  }
}

/// kCount floats side by side, at a multiple of their size or of 16 bytes.
template <int kCount>
__device__ void store_floats(float* to, const float (&x)[kCount]) {
  if constexpr (kCount == 2) {
    *reinterpret_cast<float2*>(to) = {x[0], x[1]};
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) *reinterpret_cast<float4*>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
  }
}

template <int kCount>
__device__ void load_floats(const float* from, float (&x)[kCount]) {
  if constexpr (kCount == 2) {
    const float2 pair = *reinterpret_cast<const float2*>(from);
    x[0] = pair.x, x[1] = pair.y;
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 all = *reinterpret_cast<const float4*>(from + i);
      x[i] = all.x, x[i + 1] = all.y, x[i + 2] = all.z, x[i + 3] = all.w;
    }
  }
}

template <int kCount>
__device__ void store_numbers(void* to, int64_t at, const float (&numbers)[kCount], Dtype dtype) {
  if (dtype == Dtype::kFloat32) {
    store_floats(static_cast<float*>(to) + at, numbers);
    return;
  }
  uint32_t words[kCount / 2];
#pragma unroll
  for (int i = 0; i < kCount; i += 2)
    words[i / 2] = dtype == Dtype::kBFloat16 ? pack<__nv_bfloat16>(numbers[i], numbers[i + 1])
                                             : pack<__half>(numbers[i], numbers[i + 1]);
  uint32_t* const target = reinterpret_cast<uint32_t*>(static_cast<char*>(to) + at * 2);
  if constexpr (kCount == 8) *reinterpret_cast<uint4*>(target) = {words[0], words[1], words[2], words[3]};
  else if constexpr (kCount == 4) *reinterpret_cast<uint2*>(target) = {words[0], words[1]};
  else *target = words[0];
}

}  // namespace lethe::matrix_state
