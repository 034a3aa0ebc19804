#include <array>
#include <atomic>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/attention.hpp"

namespace lethe {

int compute_capability(int device) {
  constexpr int kDevices = 64;
  static std::array<std::atomic<int>, kDevices> known{};
  if (device < kDevices && known[device] != 0) return known[device];
  int major, minor;
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
  if (device < kDevices) known[device] = major * 10 + minor;
  return major * 10 + minor;
}

}  // namespace lethe
