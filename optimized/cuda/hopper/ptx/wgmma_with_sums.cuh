#pragma once
// wgmma with eight more columns than a head has: N = 72 and 136. With a panel of ones after the operand's own panels the tensor core computes row
// sums beside the product, in the accumulators' last four registers, from exactly the 16-bit values it multiplies.

#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe::ptx {

// clang-format off
#define LETHE_D4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LETHE_D32(d, i) \
  LETHE_D4(d, i), LETHE_D4(d, i + 4), LETHE_D4(d, i + 8), LETHE_D4(d, i + 12), LETHE_D4(d, i + 16), LETHE_D4(d, i + 20), \
      LETHE_D4(d, i + 24), LETHE_D4(d, i + 28)
#define LETHE_N36 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35"
#define LETHE_N68 \
  LETHE_N36 ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67"

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
#undef LETHE_N68
#undef LETHE_N36
#undef LETHE_D32
#undef LETHE_D4
// clang-format on

}  // namespace lethe::ptx
