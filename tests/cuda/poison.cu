#include "tests/cuda/poison.hpp"

#include "tests/cuda/device.hpp"

namespace lethe::testing {
namespace {

// The volatile pointer keeps the stores: nothing reads them here.
__global__ void fill_shared_memory(int bytes) {
  extern __shared__ int memory[];
  volatile int* words = memory;
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) words[i] = -1;
}

}  // namespace

void poison_shared_memory() {
  const int multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  const int bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  require(cudaFuncSetAttribute(fill_shared_memory, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  fill_shared_memory<<<2 * multiprocessors, 1024, bytes>>>(bytes);  // one CTA's on each at a time
  require(cudaGetLastError());
}

}  // namespace lethe::testing
