// The forward kernel for windows.

#include "optimized/cuda/ampere/forward_launch.cuh"

namespace lethe::ampere {

template <typename Element, int kDim>
void launch_edges(const ForwardParameters& parameters, cudaStream_t stream) {
  launch_forward<Element, ForwardSizes<kDim>, true>(parameters, stream);
}

template void launch_edges<__nv_bfloat16, 32>(const ForwardParameters&, cudaStream_t);
template void launch_edges<__half, 32>(const ForwardParameters&, cudaStream_t);
template void launch_edges<__nv_bfloat16, 64>(const ForwardParameters&, cudaStream_t);
template void launch_edges<__half, 64>(const ForwardParameters&, cudaStream_t);
template void launch_edges<__nv_bfloat16, 96>(const ForwardParameters&, cudaStream_t);
template void launch_edges<__half, 96>(const ForwardParameters&, cudaStream_t);
template void launch_edges<__nv_bfloat16, 128>(const ForwardParameters&, cudaStream_t);
template void launch_edges<__half, 128>(const ForwardParameters&, cudaStream_t);

}  // namespace lethe::ampere
