#pragma once
// What the launches of the kernels of wgmma (launch.cu) have in common.

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

}  // namespace lethe::matrix_state
