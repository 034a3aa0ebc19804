#include "optimized/torch/gpu.hpp"

#include <c10/util/Exception.h>

#ifdef LETHE_CUDA_KERNELS
#include <cuda_runtime_api.h>

#include "optimized/cuda/check.hpp"
#endif

namespace lethe {

Gpu gpu(at::Device device) {
#ifdef LETHE_CUDA_KERNELS
  const int index = device.has_index() ? device.index() : 0;
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, index), "gpu");
  char bus_id[32];
  cuda_check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index), "gpu");
  return {properties.name, bus_id};
#else
  TORCH_CHECK(false, "device: expected a build with CUDA, found one without, and ", device);
#endif
}

}  // namespace lethe
