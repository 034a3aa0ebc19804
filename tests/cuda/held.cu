#include "tests/cuda/held.hpp"

#include <cstring>

#include "tests/cuda/device.hpp"

namespace lethe::testing {
namespace {

constexpr long long kLimit = 10'000'000'000;  // nanoseconds

__device__ long long nanoseconds() {
  long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void hold(volatile int* flags) {
  const long long end = nanoseconds() + kLimit;
  flags[1 + blockIdx.x] = 1;
  while (!flags[0] && nanoseconds() < end) __nanosleep(1000);
  flags[1 + gridDim.x + blockIdx.x] = 1;
}

}  // namespace

HeldMultiprocessors::HeldMultiprocessors(int left_free) {
  const int bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  require(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  held_ = attribute(cudaDevAttrMultiProcessorCount) - left_free;
  void* flags;
  require(cudaMallocHost(&flags, (1 + 2 * held_) * sizeof(int)));
  std::memset(flags, 0, (1 + 2 * held_) * sizeof(int));
  flags_ = static_cast<volatile int*>(flags);
  require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  hold<<<held_, 1, bytes, stream_>>>(flags_);
  require(cudaGetLastError());
  for (int i = 0; i < held_; ++i)
    while (!flags_[1 + i]) {
    }
}

bool HeldMultiprocessors::release() {
  bool held = true;
  for (int i = 0; i < held_; ++i) held = held && !flags_[1 + held_ + i];
  flags_[0] = 1;
  require(cudaStreamSynchronize(stream_));
  return held;
}

HeldMultiprocessors::~HeldMultiprocessors() {
  flags_[0] = 1;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  cudaFreeHost(const_cast<int*>(flags_));
}

}  // namespace lethe::testing
