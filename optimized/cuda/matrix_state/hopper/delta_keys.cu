// The launches of the delta rule with a gate a row that are for compute capability 9.0 (delta_keys.hpp).
#include "optimized/cuda/matrix_state/hopper/delta_keys.hpp"

#include "optimized/cuda/check.hpp"
#include "optimized/cuda/hopper/tensor_map.hpp"
#include "optimized/cuda/matrix_state/delta_keys_prepare.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_keys_reverse.cuh"
#include "optimized/cuda/matrix_state/hopper/delta_keys_sweep.cuh"

namespace lethe::matrix_state {
namespace {

void allow_bytes(const void* kernel, int bytes) {
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "delta rule: shared memory");
}

template <typename Element, int kRows>
void prepare(const DeltaKeyArguments& p, int ctas, cudaStream_t stream) {
  const auto kernel = prepare_delta_keys<Element, kRows, 3>;
  constexpr int kBytes = 3 * DeltaKeyMemory<kRows>::kStride;
  allow_bytes(reinterpret_cast<const void*>(kernel), kBytes);
  kernel<<<static_cast<unsigned>(ctas), 3 * kComputing, kBytes, stream>>>(p);
  cuda_check(cudaGetLastError(), "delta rule: launch");
}

void launch(void (*kernel)(DeltaKeyArguments, CUtensorMap), int bytes, const DeltaKeyArguments& p, Dtype dtype,
            int64_t heads, cudaStream_t stream) {
  allow_bytes(reinterpret_cast<const void*>(kernel), bytes);
  const CUtensorMap values = tensor_map(p.value, dtype, heads / p.heads, p.length, p.heads, p.columns, kChunk);
  launch_overlapping(kernel, dim3(static_cast<unsigned>(heads * ((p.columns + 127) / 128))), 256, bytes, stream, p,
                     values);
}

template <typename Element, int kRows>
void sweep(const DeltaKeyArguments& p, Dtype dtype, bool keeps, int64_t heads, cudaStream_t stream) {
  launch(keeps ? sweep_delta_keys_by_warpgroups<Element, kRows, true>
               : sweep_delta_keys_by_warpgroups<Element, kRows, false>,
         kDeltaKeyWarpgroupBytes<kRows, false>, p, dtype, heads, stream);
}

template <typename Element, int kRows>
void reverse(const DeltaKeyArguments& p, Dtype dtype, int64_t heads, cudaStream_t stream) {
  launch(reverse_delta_keys_by_warpgroups<Element, kRows>, kDeltaKeyReverseBytes<kRows>, p, dtype, heads, stream);
}

}  // namespace

void prepare_keys_in_turn(const DeltaKeyArguments& p, Dtype dtype, int ctas, cudaStream_t stream) {
  const bool brain = dtype == Dtype::kBFloat16;
  if (p.rows <= 64) brain ? prepare<__nv_bfloat16, 64>(p, ctas, stream) : prepare<__half, 64>(p, ctas, stream);
  else brain ? prepare<__nv_bfloat16, 128>(p, ctas, stream) : prepare<__half, 128>(p, ctas, stream);
}

void sweep_keys_by_warpgroups(const DeltaKeyArguments& p, Dtype dtype, bool keeps, int64_t heads, cudaStream_t stream) {
  const bool brain = dtype == Dtype::kBFloat16;
  if (p.rows <= 64)
    brain ? sweep<__nv_bfloat16, 64>(p, dtype, keeps, heads, stream)
          : sweep<__half, 64>(p, dtype, keeps, heads, stream);
  else
    brain ? sweep<__nv_bfloat16, 128>(p, dtype, keeps, heads, stream)
          : sweep<__half, 128>(p, dtype, keeps, heads, stream);
}

void reverse_keys_by_warpgroups(const DeltaKeyArguments& p, Dtype dtype, int64_t heads, cudaStream_t stream) {
  const bool brain = dtype == Dtype::kBFloat16;
  if (p.rows <= 64)
    brain ? reverse<__nv_bfloat16, 64>(p, dtype, heads, stream) : reverse<__half, 64>(p, dtype, heads, stream);
  else brain ? reverse<__nv_bfloat16, 128>(p, dtype, heads, stream) : reverse<__half, 128>(p, dtype, heads, stream);
}

}  // namespace lethe::matrix_state
