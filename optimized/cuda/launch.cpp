// Which kernels may overlap the one before.
#include "optimized/cuda/launch.cuh"

#include <map>
#include <utility>

namespace lethe {

bool overlaps_previous_kernel(const void* kernel) {
  constexpr int kFirstThatWaits = 90;  // of a virtual architecture
  thread_local std::map<std::pair<const void*, int>, bool> known;
  int device;
  cuda_check(cudaGetDevice(&device), "launch");
  if (const auto found = known.find({kernel, device}); found != known.end()) return found->second;
  cudaFuncAttributes attributes;
  cuda_check(cudaFuncGetAttributes(&attributes, kernel), "launch");
  return known[{kernel, device}] = attributes.ptxVersion >= kFirstThatWaits;
}

}  // namespace lethe
