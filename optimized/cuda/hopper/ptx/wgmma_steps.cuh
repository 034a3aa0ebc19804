#pragma once
// Four k-steps of wgmma with 64 columns at once, whose descriptors are kStepA and kStepB times 16 bytes apart. Added inside, they take two additions
// a step, where the compiler takes four instructions for those of single ones (wgmma.cuh's advance()).

#include "optimized/cuda/hopper/ptx/wgmma.cuh"

namespace lethe::ptx {

// clang-format off
#define LETHE_WGMMA_STEP(TYPE, ACCUMULATE)                                                                                      \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" LETHE_N32 "}, a, b, " ACCUMULATE ", 1, 1, %35, %36;\n"
#define LETHE_WGMMA_NEXT "add.s64 a, a, %37;\nadd.s64 b, b, %38;\n"
#define LETHE_WGMMA_STEPS(ELEMENT, TYPE)                                                                                        \
  template <Major kMajorA, Major kMajorB, int kStepA, int kStepB>                                                               \
  __device__ inline void wgmma_steps(ELEMENT, float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {                        \
    asm volatile("{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\nmov.b64 a, %32;\nmov.b64 b, %33;\n"                \
                 LETHE_WGMMA_STEP(TYPE, "p") LETHE_WGMMA_NEXT LETHE_WGMMA_STEP(TYPE, "1") LETHE_WGMMA_NEXT                      \
                 LETHE_WGMMA_STEP(TYPE, "1") LETHE_WGMMA_NEXT LETHE_WGMMA_STEP(TYPE, "1") "}"                                   \
                 : LETHE_D32(d, 0)                                                                                              \
                 : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int(kMajorA)), "n"(int(kMajorB)), "n"(kStepA), "n"(kStepB));       \
  }
LETHE_WGMMA_STEPS(__nv_bfloat16, "bf16")
LETHE_WGMMA_STEPS(__half, "f16")

#undef LETHE_WGMMA_STEPS
#undef LETHE_WGMMA_NEXT
#undef LETHE_WGMMA_STEP
// clang-format on

}  // namespace lethe::ptx
