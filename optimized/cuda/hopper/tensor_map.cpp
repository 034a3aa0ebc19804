#include "optimized/cuda/hopper/tensor_map.hpp"

#include <stdexcept>
#include <cstdlib>
#include <string>

#include "optimized/cuda/check.hpp"

namespace lethe {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Through the runtime: nothing of ours links the driver, and the library loads on machines without one.
Encode driver_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
             "cuTensorMapEncodeTiled");
  if (found != cudaDriverEntryPointSuccess)
    throw std::runtime_error("cuTensorMapEncodeTiled: expected in the driver, found none");
  return reinterpret_cast<Encode>(function);
}

// The driver has a context only in threads that have set a device or called the runtime: autograd's may have done neither.
void bind_context() {
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

}  // namespace

CUtensorMap tensor_map(const Operand& operand, Dtype dtype, int64_t batch, int64_t length, int64_t heads, int64_t dim,
                       int rows) {
  static const Encode encode = driver_encode();
  bind_context();
  constexpr cuuint64_t kBytes = 2;
  const cuuint64_t sizes[] = {cuuint64_t(dim), cuuint64_t(heads), cuuint64_t(length), cuuint64_t(batch)};
  const cuuint64_t strides[] = {kBytes * operand.head_stride, kBytes * operand.token_stride,
                                kBytes * operand.batch_stride};
  const cuuint32_t box[] = {64, 1, cuuint32_t(rows), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const char* trial = std::getenv("LETHE_TRIAL_PROMOTION");  // 0 to 3: none, 64, 128, 256 bytes
  const auto promotion = static_cast<CUtensorMapL2promotion>(trial ? std::atoi(trial) : 3);
  const CUresult result =
      encode(&map, dtype == Dtype::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             const_cast<void*>(operand.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error("tensor map: expected a tensor that the copy engine can address, found driver error " +
                             std::to_string(result));
  return map;
}

}  // namespace lethe
