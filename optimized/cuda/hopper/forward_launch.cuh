#pragma once
// The forward's two launches: of all tiles, and of what left the range or has strong gates.

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/forward_kernel.cuh"
#include "optimized/cuda/hopper/tensor_map.hpp"

namespace lethe::hopper::forward_pass {

template <typename Element, int kDim, bool kEdges>
void launch(const ForwardParameters& parameters, int grid, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Shared<kDim>);
  static_assert(kBytes <= kLargestSharedBytes);
  for (auto* kernel : {forward<Element, kDim, false, kEdges>, forward<Element, kDim, true, kEdges>}) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "forward");
    launch_overlapping(kernel, grid, Sizes<kDim>::kThreads, kBytes, stream, parameters);
  }
}

/// Whether an instance has kernels for tiles of several sequences, and windows; the others treat them as they do every cut.
template <int kDim>
inline constexpr bool kHasEdges = kDim <= 128 && kGate;

/// Where kHasEdges: in forward_edges.cu.
template <typename Element, int kDim>
void launch_edges(const ForwardParameters& parameters, int grid, cudaStream_t stream);

}  // namespace lethe::hopper::forward_pass
