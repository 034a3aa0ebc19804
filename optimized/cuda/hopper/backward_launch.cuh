#pragma once
// One launch of the main backward kernel.

#include <algorithm>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/backward_kernel.cuh"
#include "optimized/cuda/hopper/tensor_map.hpp"

namespace lethe::hopper::backward_pass {

template <typename Element, int kDim, bool kFloatSums, bool kEdges>
void launch_tiles(const BackwardParameters& parameters, cudaStream_t stream) {
  const auto kernel = backward_tiles<Element, kDim, kFloatSums, kEdges>;
  constexpr int kSharedBytes = sizeof(BackwardShared<kDim>);
  static_assert(kSharedBytes <= kLargestSharedBytes);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
             "backward: shared memory");
  const int tiles = parameters.key_tiles * parameters.rows;
  const int grid = BackwardCta<Element, kDim, kFloatSums>::kManyTiles ? std::min(tiles, multiprocessors()) : tiles;
  launch_overlapping(kernel, grid, kBackwardThreads, kSharedBytes, stream, parameters);
}

/// Whether an instance has a kernel for windows and packed sequences, in backward_edges.cu.
template <int kDim, bool kFloatSums>
inline constexpr bool kHasEdges = kDim <= 128 && kFloatSums;

template <typename Element, int kDim>
void launch_edges(const BackwardParameters& parameters, cudaStream_t stream);

}  // namespace lethe::hopper::backward_pass
