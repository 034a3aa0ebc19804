// The main backward kernel for windows and packed sequences.

#include "optimized/cuda/hopper/backward_launch.cuh"

namespace lethe::hopper::backward_pass {

template <typename Element, int kDim>
void launch_edges(const BackwardParameters& parameters, cudaStream_t stream) {
  if constexpr (kHasEdges<kDim, kGate>) launch_tiles<Element, kDim, true, true>(parameters, stream);
}

template void launch_edges<__nv_bfloat16, 64>(const BackwardParameters&, cudaStream_t);
template void launch_edges<__half, 64>(const BackwardParameters&, cudaStream_t);
template void launch_edges<__nv_bfloat16, 128>(const BackwardParameters&, cudaStream_t);
template void launch_edges<__half, 128>(const BackwardParameters&, cudaStream_t);

}  // namespace lethe::hopper::backward_pass
