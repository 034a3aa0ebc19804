// The forward's kernels for tiles of several sequences, and windows.

#include "optimized/cuda/hopper/forward_launch.cuh"

namespace lethe::hopper::forward_pass {

template <typename Element, int kDim>
void launch_edges(const ForwardParameters& parameters, int grid, cudaStream_t stream) {
  if constexpr (kHasEdges<kDim>) launch<Element, kDim, true>(parameters, grid, stream);
}

template void launch_edges<__nv_bfloat16, 64>(const ForwardParameters&, int, cudaStream_t);
template void launch_edges<__half, 64>(const ForwardParameters&, int, cudaStream_t);
template void launch_edges<__nv_bfloat16, 128>(const ForwardParameters&, int, cudaStream_t);
template void launch_edges<__half, 128>(const ForwardParameters&, int, cudaStream_t);

}  // namespace lethe::hopper::forward_pass
