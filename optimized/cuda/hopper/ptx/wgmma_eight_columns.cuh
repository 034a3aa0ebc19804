#pragma once
// wgmma of eight columns, the fewest there are: the product of a tile and a vector or two. The forms of wgmma.cuh; a lane's four sums are rows g and
// g + 8, columns 2t and 2t + 1.

#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe::ptx {

// clang-format off
#define LETHE_WGMMA_EIGHT_COLUMNS(ELEMENT, TYPE)                                                                                \
  template <Major kMajorA, Major kMajorB>                                                                                       \
  __device__ inline void wgmma(ELEMENT, float (&d)[4], uint64_t a, uint64_t b, bool accumulate) {                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE            \
                 " {" LETHE_N4 "}, %4, %5, p, 1, 1, %7, %8;\n}"                                                                 \
                 : LETHE_D4(d, 0)                                                                                               \
                 : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int(kMajorA)), "n"(int(kMajorB)));                                 \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,          \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE "." TYPE            \
                 " {" LETHE_N4 "}, {%4, %5, %6, %7}, %8, p, 1, 1, %10;\n}"                                                      \
                 : LETHE_D4(d, 0)                                                                                               \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }

LETHE_WGMMA_EIGHT_COLUMNS(__nv_bfloat16, "bf16")
LETHE_WGMMA_EIGHT_COLUMNS(__half, "f16")

#undef LETHE_WGMMA_EIGHT_COLUMNS
// clang-format on

}  // namespace lethe::ptx
