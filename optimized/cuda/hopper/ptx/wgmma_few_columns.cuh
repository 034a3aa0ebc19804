#pragma once
// wgmma of 16, 32 and 48 columns with the left operand in registers: products with the blocks of a triangle. The form of wgmma.cuh.

#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe::ptx {

// clang-format off
#define LETHE_WGMMA_FEW_COLUMNS(ELEMENT, TYPE)                                                                                  \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[8], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,          \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N8 "}, {%8, %9, %10, %11}, %12, p, 1, 1, %14;\n}"                                                   \
                 : LETHE_D8(d, 0)                                                                                               \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[16], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,         \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N16 "}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}"                                                \
                 : LETHE_D8(d, 0), LETHE_D8(d, 8)                                                                               \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[24], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,         \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\nwgmma.mma_async.sync.aligned.m64n48k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N24 "}, {%24, %25, %26, %27}, %28, p, 1, 1, %30;\n}"                                                \
                 : LETHE_D8(d, 0), LETHE_D8(d, 8), LETHE_D8(d, 16)                                                              \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }

LETHE_WGMMA_FEW_COLUMNS(__nv_bfloat16, "bf16")
LETHE_WGMMA_FEW_COLUMNS(__half, "f16")

#undef LETHE_WGMMA_FEW_COLUMNS
// clang-format on

}  // namespace lethe::ptx
