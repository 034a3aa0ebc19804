#pragma once
// wgmma: D [64, N] += A [64, 16] · B [16, N] by one warpgroup, 16-bit operands, float accumulators.
//
// Fragment of D (and, two n-blocks at a time, of A in registers): warp w, lane l own rows 16w + l/4 and 16w + l/4 + 8; register
// 4j + 2h + e is row 16w + l/4 + 8h, column 8j + 2(l%4) + e. So D of one product, packed to 16 bits, is A of the next:
// k-step s takes the packed pairs of registers 8s..8s+7, in order.
//
// Shared operands, except unswizzled_descriptor's, are stored in panels of 64 elements × rows, 128-byte swizzled, 1024-byte aligned (the copy
// engine's box of 64 elements). K-major: the panel's rows run along M or N; a k-step of 16 advances 32 bytes. MN-major (transposed): the panel's rows
// run along K; a k-step advances 16 rows = 2048 bytes, and the next 64 of M or N are one panel further.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "optimized/cuda/hopper/ptx/barrier.cuh"
#include "optimized/cuda/hopper/ptx/wgmma_registers.cuh"

namespace lethe::ptx {

/// Orders accesses to registers before the wgmma that follow; needed before the first of a batch whenever registers of the batch were touched.
/// Threads' writes to shared memory need fence_async_shared().
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most kPending committed groups are in flight.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of these registers across this point: before a batch that reads or writes them, and
/// after the wait that ends it.
template <int kCount>
__device__ inline void fence_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ inline void fence_registers(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// Gives registers any value, where a batch starts from zero: no earlier value has to be kept for it.
template <int kCount>
__device__ inline void undefined(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(registers[i])::"memory");
}

/// The same value, opaque to the compiler: numbers computed from it after this point occupy no registers before it.
__device__ inline int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// The same of a descriptor.
__device__ inline uint64_t opaque_descriptor(uint64_t descriptor) {
  asm volatile("" : "+l"(descriptor));
  return descriptor;
}

/// Descriptor of a 128-byte-swizzled operand. `panel_bytes` (rows·128, the step to the next 64 elements of M or N) matters to
/// MN-major operands wider than 64 only. Advance by adding bytes/16.
__device__ inline uint64_t operand_descriptor(const void* shared, uint32_t panel_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kStrideOf8Rows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kStrideOf8Rows | (uint64_t{panel_bytes >> 4} << 16) | (shared_address(shared) >> 4);
}

/// Descriptor of an operand without a swizzle: 8 rows × 16 bytes are contiguous, 16-byte aligned; K-major, rows run along M or N, else along K.
/// `k_bytes` is the stride to the other 8 of a step's 16 elements of K, `row_bytes` that to the next 8 of M or N; either may be 0, which reads the
/// same again. Groups of 8 × 16 bytes may overlap: both read the shared bytes.
__device__ inline uint64_t unswizzled_descriptor(const void* shared, uint32_t k_bytes, uint32_t row_bytes) {
  return (uint64_t{row_bytes >> 4} << 32) | (uint64_t{k_bytes >> 4} << 16) | (shared_address(shared) >> 4);
}

/// The descriptor of the operand `steps` times kBytes behind another's. The empty assembly hides which of its bits are zero: the compiler would
/// compute descriptors of further k-steps by two logical operations and two moves, where one addition does.
template <int kBytes>
__device__ inline uint64_t advance(uint64_t descriptor, uint32_t steps) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + steps * static_cast<uint32_t>(kBytes / 16);
  uint64_t advanced = (descriptor & ~uint64_t{0xffffffff}) | low;
  asm("" : "+l"(advanced));
  return advanced;
}

/// The same descriptor in two uniform registers, whose value is opaque to ptxas: it would otherwise recompute the operand at every use. There are 63
/// of these registers: for operands that every step uses.
__device__ inline uint64_t pin_uniform(uint64_t descriptor) {
  const uint32_t low = in_uniform_register(static_cast<int>(descriptor)),
                 high = in_uniform_register(static_cast<int>(descriptor >> 32));
  return uint64_t{high} << 32 | low;
}

enum class Major { kK = 0, kMN = 1 };

// clang-format off
// `accumulate` false starts D from zero: the scale-d predicate of the instruction.
#define LETHE_WGMMA(ELEMENT, TYPE)                                                                                              \
  template <Major kMajorA, Major kMajorB>                                                                                       \
  __device__ inline void wgmma(ELEMENT, float (&d)[16], uint64_t a, uint64_t b, bool accumulate) {                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N16 "}, %16, %17, p, 1, 1, %19, %20;\n}"                                                            \
                 : LETHE_D8(d, 0), LETHE_D8(d, 8)                                                                               \
                 : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int(kMajorA)), "n"(int(kMajorB)));                                 \
  }                                                                                                                             \
  template <Major kMajorA, Major kMajorB>                                                                                       \
  __device__ inline void wgmma(ELEMENT, float (&d)[32], uint64_t a, uint64_t b, bool accumulate) {                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N32 "}, %32, %33, p, 1, 1, %35, %36;\n}"                                                            \
                 : LETHE_D32(d, 0)                                                                                              \
                 : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int(kMajorA)), "n"(int(kMajorB)));                                 \
  }                                                                                                                             \
  template <Major kMajorA, Major kMajorB>                                                                                       \
  __device__ inline void wgmma(ELEMENT, float (&d)[64], uint64_t a, uint64_t b, bool accumulate) {                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE         \
                 " {" LETHE_N64 "}, %64, %65, p, 1, 1, %67, %68;\n}"                                                            \
                 : LETHE_D32(d, 0), LETHE_D32(d, 32)                                                                            \
                 : "l"(a), "l"(b), "r"(int{accumulate}), "n"(int(kMajorA)), "n"(int(kMajorB)));                                 \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,         \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE          \
                 " {" LETHE_N32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"                                                \
                 : LETHE_D32(d, 0)                                                                                              \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,         \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE         \
                 " {" LETHE_N64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"                                                \
                 : LETHE_D32(d, 0), LETHE_D32(d, 32)                                                                            \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }                                                                                                                             \
  template <Major kMajorB>                                                                                                      \
  __device__ inline void wgmma(ELEMENT, float (&d)[128], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,        \
                               bool accumulate) {                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\nwgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE        \
                 " {" LETHE_N128 "}, {%128, %129, %130, %131}, %132, p, 1, 1, %134;\n}"                                         \
                 : LETHE_D32(d, 0), LETHE_D32(d, 32), LETHE_D32(d, 64), LETHE_D32(d, 96)                                        \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(int{accumulate}), "n"(int(kMajorB)));                        \
  }

// The unused first argument picks the element type: wgmma<Major::kK, Major::kK>(Element{}, d, a, b, accumulate).
LETHE_WGMMA(__nv_bfloat16, "bf16")
LETHE_WGMMA(__half, "f16")

#undef LETHE_WGMMA
// clang-format on

}  // namespace lethe::ptx
