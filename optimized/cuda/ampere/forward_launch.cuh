#pragma once
// One launch of the forward kernel.

#include "optimized/cuda/ampere/forward_kernel.cuh"
#include "optimized/cuda/check.hpp"

namespace lethe::ampere {

template <typename Element, typename Sizes, bool kEdges>
void launch_forward(const ForwardParameters& parameters, cudaStream_t stream) {
  constexpr int kBytes = sizeof(ForwardSharedOf<Element, Sizes>);
  static_assert(kBytes <= kSmallSharedBytes);
  const auto kernel = forward_tiles<Element, Sizes, kEdges>;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "forward");
  launch_overlapping(kernel, parameters.tiles, Sizes::kThreads, kBytes, stream, parameters);
}

/// Whether an instance has a kernel for windows; the others treat them as they do every cut.
template <typename Element, int kDim>
inline constexpr bool kHasEdges = !std::is_same_v<Element, float> && kDim <= 128;

/// Where kHasEdges: in forward_edges.cu.
template <typename Element, int kDim>
void launch_edges(const ForwardParameters& parameters, cudaStream_t stream);

}  // namespace lethe::ampere
