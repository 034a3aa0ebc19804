// The gradients of a state of at most 64 × 64 by two kernels: the states before each chunk, then all gradients in one pass in reverse (fused.hpp).
#include "optimized/cuda/matrix_state/fused.hpp"

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/tensor_map.hpp"
#include "optimized/cuda/matrix_state/fused_gradients.cuh"

namespace lethe::matrix_state {
namespace {

template <typename Element, bool kGated>
void launch(const FusedArguments& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(int64_t{1} * p.batch * p.heads * segments_of(p.length)));
  const auto run = [&](void (*kernel)(FusedArguments), int bytes, bool overlapping) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "matrix state: shared memory");
    if (overlapping) return launch_overlapping(kernel, grid, kComputing, bytes, stream, p);
    kernel<<<grid, kComputing, bytes, stream>>>(p);
    cuda_check(cudaGetLastError(), "matrix state: launch");
  };
  static_assert(FusedStatesShared::kBytes <= FusedShared::kBytes, "is_fused asks for the larger one");
  run(fused_states<Element, kGated>, FusedStatesShared::kBytes, false);
  run(fused_gradients<Element, kGated>, FusedShared::kBytes, true);
}

}  // namespace

bool is_fused(const Shape& shape) {
  if (shape.key_dim > 64 || shape.value_dim > 64) return false;
  int device, bytes;
  cuda_check(cudaGetDevice(&device), "matrix state: device");
  cuda_check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "matrix state: shared memory");
  return bytes >= FusedShared::kBytes;
}

void launch_fused(FusedArguments p, Dtype dtype, cudaStream_t stream) {
  int device;
  cuda_check(cudaGetDevice(&device), "matrix state: device");
  if (compute_capability(device) >= 90) {
    const auto map = [&](Operand operand, int dim) {
      const int heads = operand.head_stride ? p.heads : 1;
      if (operand.head_stride == 0) operand.head_stride = operand.token_stride;  // the copy engine has no stride of 0
      return tensor_map(operand, dtype, p.batch, p.length, heads, dim, kChunk);
    };
    p.maps[0] = map(p.query, p.rows);
    p.maps[1] = map(p.key, p.rows);
    p.maps[2] = map(p.value, p.columns);
    p.maps[3] = map(p.grad_values, p.columns);
  }
  const bool gated = p.gate.log_forget != nullptr;
  if (dtype == Dtype::kBFloat16)
    gated ? launch<__nv_bfloat16, true>(p, stream) : launch<__nv_bfloat16, false>(p, stream);
  else gated ? launch<__half, true>(p, stream) : launch<__half, false>(p, stream);
}

}  // namespace lethe::matrix_state
