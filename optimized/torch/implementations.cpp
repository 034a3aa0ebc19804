#include "optimized/torch/implementations.hpp"

#include <algorithm>

#include "optimized/coverage.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/portable/operators.hpp"
#ifdef LETHE_CUDA_KERNELS
#include "optimized/cuda/attention.hpp"
#include "optimized/torch/cuda_forgetting_attention.hpp"
#endif

namespace lethe {
namespace {

std::string every_call(const Call&) { return ""; }

std::string unsupported_by_sm_90a(const Call& call) {
  const Shape& s = call.shape;
  if (std::min({s.batch, s.query_length, s.query_heads, s.value_dim}) == 0)
    return "size: expected elements, found none";
  return unsupported(s, call.dtype, call.compute_capability);
}

// Without the kernels the row still names their coverage, for a device given by name only; a tensor's device has capability 0.
#ifdef LETHE_CUDA_KERNELS
constexpr auto kCudaForward = cuda::forgetting_attention_forward;
constexpr auto kCudaBackward = cuda::forgetting_attention_backward;
int capability_of(const at::Tensor& tensor) { return tensor.is_cuda() ? compute_capability(tensor.get_device()) : 0; }
#else
constexpr AttentionOutputs (*kCudaForward)(const AttentionInputs&) = nullptr;
constexpr AttentionGradients (*kCudaBackward)(const at::Tensor&, const AttentionInputs&,
                                              const AttentionOutputs&) = nullptr;
int capability_of(const at::Tensor&) { return 0; }
#endif

constexpr AttentionImplementation kAttention[] = {
    {"CPU", at::kCPU, every_call, cpu::forgetting_attention_forward, cpu::forgetting_attention_backward},
    {kHopperKernels, at::kCUDA, unsupported_by_sm_90a, kCudaForward, kCudaBackward},
    {"portable", std::nullopt, every_call, portable::forgetting_attention_forward,
     portable::forgetting_attention_backward},
};

constexpr MatrixStateImplementation kMatrixState[] = {
    {"CPU", at::kCPU, every_call, cpu::matrix_state_forward, cpu::matrix_state_backward},
    {"portable", std::nullopt, every_call, portable::matrix_state_forward, portable::matrix_state_backward},
};

Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return Dtype::kFloat64;
    case at::kFloat: return Dtype::kFloat32;
    case at::kBFloat16: return Dtype::kBFloat16;
    default: return Dtype::kFloat16;
  }
}

}  // namespace

Call call_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return {
      .shape = {query.size(0), query.size(1), key.size(1), key.size(2), query.size(2), query.size(3), value.size(3)},
      .dtype = dtype_of(query),
      .device = query.device().type(),
      .compute_capability = capability_of(query)};
}

std::span<const AttentionImplementation> attention_implementations() { return kAttention; }
std::span<const MatrixStateImplementation> matrix_state_implementations() { return kMatrixState; }

}  // namespace lethe
