#pragma once
// Barriers, fences and register budgets of one CTA: one function per instruction, all for the calling thread.

#include <cstdint>

#include "optimized/cuda/ptx/address.cuh"

namespace lethe::ptx {

// ---- mbarrier: a phase ends when all arrivals and all announced bytes are in ----

__device__ inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/// Makes freshly initialised mbarriers visible to the copy engine; a __syncthreads() must follow for the other threads.
__device__ inline void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/// One arrival that also announces `bytes` to be copied before the phase may end.
__device__ inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

/// Whether the phase of this parity has ended. Tests once; the hardware may suspend the thread for a short time.
__device__ inline bool mbarrier_try_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

/// Waits until the phase of this parity has ended.
__device__ inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) {
  }
}

/// The same for a thread that waits long and often: it sleeps between its tests and leaves the issue slots to others.
__device__ inline void mbarrier_wait_patiently(uint64_t* barrier, uint32_t parity) {
  while (!mbarrier_try_wait(barrier, parity)) __nanosleep(64);
}

/// A position in a ring of stages: `index` of the stage and the parity of its present round.
struct RingPosition {
  uint32_t index = 0;
  uint32_t parity = 0;
  __device__ void advance(uint32_t stages) {
    if (++index == stages) {
      index = 0;
      parity ^= 1;
    }
  }
};

// ---- named barriers: `threads` counts all that sync or arrive, a multiple of 32; id 0 is __syncthreads() ----

__device__ inline void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void named_barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- fences ----

/// Orders ordinary writes to shared memory before later reads of it by wgmma and the copy engine: this thread's own writes, and those of others that
/// a barrier has made visible to it. So the fence may come before or after that barrier. PTX's memory model has no rule for this proxy; for others it
/// requires a fence on the path from write to read (ISA 8.9.5). The fence waits until this thread's writes have arrived.
__device__ inline void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same for global memory: after an acquire, before the copy engine reads what others have written.
__device__ inline void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// ---- registers of a warpgroup; the kernel needs __launch_bounds__(threads, 1) ----

template <uint32_t kRegisters>
__device__ inline void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <uint32_t kRegisters>
__device__ inline void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// A value that all lanes of the warp hold (lane 0's is taken), so that the compiler may keep it in a uniform register.
__device__ inline int broadcast(int value) { return __shfl_sync(~0u, value, 0); }

/// The same where the compiler can't derive it: a reduction's result is in a uniform register, a shuffle's is not, and numbers computed from it
/// (descriptors, addresses of barriers) stay there. It takes longer than a shuffle.
__device__ inline int in_uniform_register(int value) {
  return static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(value)));
}

// ---- a number in global memory that publishes earlier writes to another CTA ----

__device__ inline int32_t load_acquire(const int32_t* number) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(number) : "memory");
  return value;
}

__device__ inline void store_release(int32_t* number, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(number), "r"(value) : "memory");
}

}  // namespace lethe::ptx
