#include "optimized/torch/implementations.hpp"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

#include "optimized/coverage.hpp"
#include "optimized/cpu/operators.hpp"
#include "optimized/portable/operators.hpp"
#include "optimized/torch/dtype.hpp"
#ifdef LETHE_CUDA_KERNELS
#include "optimized/cuda/attention.hpp"
#include "optimized/torch/cuda_forgetting_attention.hpp"
#endif

namespace lethe {
namespace {

std::string every_call(const Call&) { return ""; }

// Whether the environment asks for the kernels that run on every GPU, on those that have kernels of their own, too.
bool only_portable_kernels() {
  const char* kernels = std::getenv("LETHE_KERNELS");
  if (!kernels || !*kernels) return false;
  TORCH_CHECK(std::string(kernels) == "portable", "LETHE_KERNELS: expected portable, or nothing, found ", kernels);
  return true;
}

std::string unsupported_by(const Coverage& family, const Call& call) {
  const Shape& s = call.shape;
  if (!family.portable && only_portable_kernels()) return "LETHE_KERNELS: found portable";
  if (std::min({s.batch, s.query_length, s.query_heads, s.value_dim}) == 0)
    return "size: expected elements, found none";
  return family.unsupported(s, call.dtype, call.compute_capability);
}

// The row of a kernel family, still without its functions.
AttentionImplementation row_of(const Coverage& family) {
  return {family.name, at::kCUDA, std::bind_front(unsupported_by, family), nullptr, nullptr};
}

// Without the kernels the rows still name their coverage, for a device given by name only; a tensor's device has capability 0.
#ifdef LETHE_CUDA_KERNELS
std::vector<AttentionImplementation> cuda_rows() {
  std::vector<AttentionImplementation> rows;
  for (const AttentionFamily& family : attention_families()) {
    AttentionImplementation& row = rows.emplace_back(row_of(family));
    row.forward = std::bind_front(cuda::forgetting_attention_forward, std::cref(family));
    row.backward = std::bind_front(cuda::forgetting_attention_backward, std::cref(family));
  }
  return rows;
}
int capability_of(const at::Tensor& tensor) { return tensor.is_cuda() ? compute_capability(tensor.get_device()) : 0; }
#else
std::vector<AttentionImplementation> cuda_rows() {
  std::vector<AttentionImplementation> rows;
  for (const Coverage& family : kAttentionCoverage) rows.push_back(row_of(family));
  return rows;
}
int capability_of(const at::Tensor&) { return 0; }
#endif

std::vector<AttentionImplementation> attention_rows() {
  std::vector<AttentionImplementation> rows = cuda_rows();
  rows.insert(rows.begin(),
              {"CPU", at::kCPU, every_call, cpu::forgetting_attention_forward, cpu::forgetting_attention_backward});
  rows.push_back({"portable", std::nullopt, every_call, portable::forgetting_attention_forward,
                  portable::forgetting_attention_backward});
  return rows;
}

}  // namespace

Call call_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return {
      .shape = {query.size(0), query.size(1), key.size(1), key.size(2), query.size(2), query.size(3), value.size(3)},
      .dtype = dtype_of(query.scalar_type()),
      .device = query.device().type(),
      .compute_capability = capability_of(query)};
}

std::span<const AttentionImplementation> attention_implementations() {
  static const std::vector<AttentionImplementation> rows = attention_rows();
  return rows;
}

std::span<const MatrixStateImplementation> matrix_state_implementations() {
  static const MatrixStateImplementation rows[] = {
      {"CPU", at::kCPU, every_call, cpu::matrix_state_forward, cpu::matrix_state_backward},
      {"portable", std::nullopt, every_call, portable::matrix_state_forward, portable::matrix_state_backward},
  };
  return rows;
}

}  // namespace lethe
