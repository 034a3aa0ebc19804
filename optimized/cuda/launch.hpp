#pragma once
// Launches whose beginning overlaps the end of the kernel before them, and what a device has for them. Internal to optimized/cuda.

#include "optimized/cuda/check.hpp"

namespace lethe {

/// Shared memory that one CTA may have on compute capability 9.0.
inline constexpr int kLargestSharedBytes = 227 * 1024;

/// Of the current device.
inline int multiprocessors() {
  int device, count;
  cuda_check(cudaGetDevice(&device), "multiprocessors");
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  return count;
}

/// Launches a kernel that may start before the previous one of the stream has ended: it must call ptx::wait_for_previous_kernel()
/// before it reads what that one writes or writes what that one touches; and somewhere before it ends, for what comes behind it waits
/// for it alone.
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
  config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), "launch");
}

}  // namespace lethe
