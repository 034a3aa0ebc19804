#pragma once
// Dependent launches: a kernel whose beginning overlaps the end of the kernel before it on the same stream. Internal to optimized/cuda.

#include <algorithm>
#include <cstdint>

#include "optimized/cuda/check.hpp"

namespace lethe {

/// Multiprocessors of the current device.
inline int multiprocessors() {
  int device, count;
  cuda_check(cudaGetDevice(&device), "multiprocessors");
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  return count;
}

/// Whether a kernel's launches on the current device may overlap the kernel before: where its code waits for that one, which code and PTX below compute
/// capability 9.0 do not, on later devices either. Asked of the runtime once a kernel, device and thread.
bool overlaps_previous_kernel(const void* kernel);

/// The number of heads, between one and `heads`, that share the L2 cache at `head_bytes` each: the size of a section of tiles.
inline int heads_in_cache(int64_t head_bytes, int64_t heads) {
  constexpr int64_t kCacheBytes = 32 << 20;  // of 50 MB on a Hopper GPU
  return static_cast<int>(std::clamp<int64_t>(kCacheBytes / std::max<int64_t>(1, head_bytes), 1, heads));
}

/// Launches a kernel that may start before the previous one of the stream has ended, where its code can wait for that. The kernel calls
/// wait_for_previous_kernel() before it reads data that one writes or writes data that one touches, and in any case one of its CTAs does before it
/// ends: the next kernel waits for this one alone.
template <typename... Parameters>
void launch_overlapping(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes, cudaStream_t stream,
                        const Parameters&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlaps_previous_kernel(reinterpret_cast<const void*>(kernel)) ? 1 : 0;
  cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), "launch");
}

#ifdef __CUDACC__
/// Waits until the previous kernel of the stream has ended. Code below compute capability 9.0 is launched after that: nothing to wait for.
__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The same at the end of a kernel that reads and writes nothing of the previous one's: its last CTA alone waits, with which it ends. The others
/// leave their places on the multiprocessors to the CTAs that come after them.
__device__ inline void end_after_previous_kernel() {
  if (blockIdx.x + 1 == gridDim.x) wait_for_previous_kernel();
}

/// Lets the next kernel of the stream start as soon as all CTAs of this one have called this or ended.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

}  // namespace lethe
