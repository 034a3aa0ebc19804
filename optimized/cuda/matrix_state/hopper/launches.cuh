#pragma once
// What the launches of the kernels of wgmma (launch.cu) have in common.

#include <type_traits>

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/matrix_state/hopper/memory.hpp"

namespace lethe::matrix_state {

/// What a copy asks of memory at a time: a row of a tile, which has 128 bytes. 256 would fetch the neighbouring head's as well
/// (no gate 4 to 7 % slower forward on an H200).
inline Maps maps_of(const MatrixStateInput& in) { return {in, CU_TENSOR_MAP_L2_PROMOTION_L2_128B}; }

template <typename Arguments>
inline Arguments arguments_of(const MatrixStateInput& in) {
  Arguments p{};
  p.gate = {static_cast<const float*>(in.key_gate.data), in.key_gate.batch_stride, in.key_gate.token_stride,
            in.key_gate.head_stride};
  p.length = in.shape.key_length;
  p.batch = static_cast<int>(in.shape.batch);
  p.heads = static_cast<int>(in.shape.heads);
  p.rows = static_cast<int>(in.shape.key_dim);
  p.columns = static_cast<int>(in.shape.value_dim);
  return p;
}

template <typename Arguments>
inline void launch(void (*kernel)(Arguments), int64_t ctas, int threads, int bytes, bool overlapping,
                   cudaStream_t stream, const Arguments& p) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "matrix state: shared memory");
  const dim3 grid(static_cast<unsigned>(ctas));
  if (overlapping) return launch_overlapping(kernel, grid, threads, bytes, stream, p);
  kernel<<<grid, threads, bytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "matrix state: launch");
}

/// visit(Element{}, whether there are gates, blocks of the state)
template <typename Visit>
inline void by_type(const MatrixStateInput& in, Visit&& visit) {
  const auto by_blocks = [&](auto element, auto gated) {
    if (blocks_of(in.shape) == 1) visit(element, gated, std::integral_constant<int, 1>{});
    else visit(element, gated, std::integral_constant<int, 2>{});
  };
  const bool gated = in.key_gate.data != nullptr;
  if (in.dtype == Dtype::kBFloat16)
    gated ? by_blocks(__nv_bfloat16{}, std::true_type{}) : by_blocks(__nv_bfloat16{}, std::false_type{});
  else gated ? by_blocks(__half{}, std::true_type{}) : by_blocks(__half{}, std::false_type{});
}

/// Of sweep_gradients, where a state has two tiles of columns (launch_tiles.cu).
void launch_gradients_of_two_tiles(const MatrixStateBackward& a, int64_t ctas, bool overlapping,
                                   const StateGradientArguments& p);

}  // namespace lethe::matrix_state
