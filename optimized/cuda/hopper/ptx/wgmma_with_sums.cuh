#pragma once
// wgmma with eight more columns than a head has: N = 72 and 136. With a panel of ones after the operand's own panels the tensor core computes row
// sums beside the product, in the accumulators' last four registers, from exactly the 16-bit values it multiplies.

#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe::ptx {

// clang-format off
// The same forms as in wgmma.cuh: A from shared memory (N = 72 only) or from registers.
#define LETHE_WGMMA_WITH_SUMS(ELEMENT, TYPE)                                                                                    \
  template <Major kMajorA, Major kMajorB>                                                                                       \
  __device__ inline void wgmma(ELEMENT, float (&d)[36], uint64_t a, uint64_t b, bool accumulate) {                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\nwgmma.mma_async.sync.aligned.m64n72k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N36 "}, %36, %37, p, 1, 1, %39, %40;\n}"                                                            \
                 : LETHE_D32(d, 0), LETHE_D4(d, 32)                                                                             \
                 : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int(kMajorA)), "n"(int(kMajorB)));                                 \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[36], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,         \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %41, 0;\nwgmma.mma_async.sync.aligned.m64n72k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N36 "}, {%36, %37, %38, %39}, %40, p, 1, 1, %42;\n}"                                                \
                 : LETHE_D32(d, 0), LETHE_D4(d, 32)                                                                             \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[68], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,         \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %73, 0;\nwgmma.mma_async.sync.aligned.m64n136k16.f32." TYPE "." TYPE         \
                 " {" LETHE_N68 "}, {%68, %69, %70, %71}, %72, p, 1, 1, %74;\n}"                                                \
                 : LETHE_D32(d, 0), LETHE_D32(d, 32), LETHE_D4(d, 64)                                                           \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }

LETHE_WGMMA_WITH_SUMS(__nv_bfloat16, "bf16")
LETHE_WGMMA_WITH_SUMS(__half, "f16")

#undef LETHE_WGMMA_WITH_SUMS
// clang-format on

}  // namespace lethe::ptx
