// The kernel families of Forgetting Attention on CUDA. The first row that supports a call runs it.
#include <algorithm>
#include <array>
#include <atomic>

#include "optimized/cuda/ampere/attention.hpp"
#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/attention.hpp"

namespace lethe {

namespace {

constexpr AttentionFamily kFamilies[] = {
    {kHopperCoverage, hopper::forward, hopper::backward, hopper::forward_workspace_bytes,
     hopper::backward_workspace_bytes, hopper::query_sums},
    {kAmpereCoverage, ampere::forward, ampere::backward, ampere::forward_workspace_bytes,
     ampere::backward_workspace_bytes, nullptr},
};
static_assert(std::ranges::equal(kFamilies, kAttentionCoverage, {}, &Coverage::unsupported, &Coverage::unsupported),
              "a build without these kernels names the same families in the same order");

}  // namespace

std::span<const AttentionFamily> attention_families() { return kFamilies; }

int compute_capability(int device) {
#ifdef LETHE_COMPUTE_CAPABILITY  // a build that runs what an older GPU would
  return LETHE_COMPUTE_CAPABILITY;
#endif
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
