// The internal operators on CUDA: our kernels where they cover the problem, the portable implementation elsewhere.
#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <limits>
#include <string>

#include "optimized/cuda/attention.hpp"
#include "optimized/torch/arguments.hpp"
#include "optimized/torch/portable.hpp"

namespace lethe {
namespace {

using at::Tensor;
using ForwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using BackwardResult = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Shape shape_of(const Tensor& query, const Tensor& key, const Tensor& value) {
  return {query.size(0), query.size(1), key.size(1), key.size(2), query.size(2), query.size(3), value.size(3)};
}

Dtype dtype_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble: return Dtype::kFloat64;
    case at::kFloat: return Dtype::kFloat32;
    case at::kBFloat16: return Dtype::kBFloat16;
    default: return Dtype::kFloat16;
  }
}

// Why the kernels do not take the problem, or "".
std::string reason_against(const Tensor& query, const Tensor& key, const Tensor& value) {
  if (query.numel() == 0 || value.numel() == 0) return "size: expected elements, found none";
  return unsupported(shape_of(query, key, value), dtype_of(query), compute_capability(query.get_device()));
}

bool covered(const Tensor& query, const Tensor& key, const Tensor& value) {
  return reason_against(query, key, value).empty();
}

// Of a call that is covered.
const AttentionFamily& family_for(const Tensor& query, const Tensor& key, const Tensor& value) {
  return *attention_family(shape_of(query, key, value), dtype_of(query), compute_capability(query.get_device()));
}

std::string implementation(const Tensor& query, const Tensor& key, const Tensor& value) {
  return implementation_on_cuda(reason_against(query, key, value));
}

// The tensor itself where the copy engine can address it, else a contiguous copy.
Tensor addressable(const Tensor& tensor) {
  constexpr int64_t kAlignment = 16;
  const int64_t size = tensor.element_size();
  bool fits = tensor.stride(3) == 1 && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
  for (int dim = 0; dim < 3; ++dim)
    fits = fits && tensor.stride(dim) > 0 && tensor.stride(dim) * size % kAlignment == 0;
  return fits ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

Operand operand(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

Gates gates_of(const Tensor& log_forget) {
  return {log_forget.const_data_ptr<float>(), log_forget.stride(0), log_forget.stride(1), log_forget.stride(2)};
}

Tensor workspace_of(size_t bytes, const Tensor& like) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

ForwardResult forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& log_forget,
                      double scale, std::optional<double> log_pruning_tolerance,
                      const std::optional<Tensor>& logit_bound, bool keep_residual) {
  check_forward_arguments(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound);
  const c10::cuda::CUDAGuard device(query.device());
  if (!covered(query, key, value))
    return portable::forward(query, key, value, log_forget, scale, log_pruning_tolerance, logit_bound, keep_residual);
  const Shape shape = shape_of(query, key, value);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const Tensor q = addressable(query), k = addressable(key), v = addressable(value);
  Tensor values = at::empty(query.sizes(), query.options());
  Tensor residual = keep_residual ? at::empty(query.sizes(), query.options()) : at::empty({0}, query.options());
  Tensor log_normalizer = at::empty({shape.batch, shape.query_length, shape.query_heads}, log_forget.options());
  Tensor visited_pairs = at::empty({shape.batch, shape.query_heads}, query.options().dtype(at::kLong));
  Tensor boundary = at::empty({shape.batch, shape.query_heads, (shape.query_length + kQueryRows - 1) / kQueryRows},
                              query.options().dtype(at::kInt));
  // Rounded up: a bound that float32 made smaller would be none.
  const Tensor bound = logit_bound ? logit_bound->to(at::kDouble)
                                         .mul(1 + 1e-6)
                                         .to(at::kFloat)
                                         .expand({shape.batch, shape.query_heads})
                                         .contiguous()
                                   : Tensor();
  const AttentionFamily& family = family_for(query, key, value);
  const Tensor workspace = workspace_of(family.forward_workspace_bytes(shape), query);
  family.forward({.shape = shape,
                  .dtype = dtype_of(query),
                  .scale = scale,
                  .query = operand(q),
                  .key = operand(k),
                  .value = operand(v),
                  .gates = gates_of(log_forget),
                  .log_pruning_tolerance = log_pruning_tolerance.value_or(-std::numeric_limits<double>::infinity()),
                  .logit_bound = bound.defined() ? bound.const_data_ptr<float>() : nullptr,
                  .values = values.mutable_data_ptr(),
                  .residual = keep_residual ? residual.mutable_data_ptr() : nullptr,
                  .log_normalizer = log_normalizer.mutable_data_ptr<float>(),
                  .visited_pairs = visited_pairs.mutable_data_ptr<int64_t>(),
                  .first_key_block = boundary.mutable_data_ptr<int32_t>(),
                  .workspace = workspace.mutable_data_ptr(),
                  .stream = stream});
  return {values, log_normalizer, visited_pairs, boundary, residual};
}

// Torch's switch for attention that may add up in 16 bits, torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True): off unless it is
// turned on.
bool sums_in_16_bits_allowed() { return at::globalContext().allowFP16BF16ReductionMathSDP(); }

BackwardResult backward(const Tensor& grad_values, const Tensor& query, const Tensor& key, const Tensor& value,
                        const Tensor& log_forget, const Tensor& values, const Tensor& residual,
                        const Tensor& log_normalizer, const Tensor& boundary, double scale) {
  check_backward_arguments(grad_values, query, key, value, log_forget, values, residual, log_normalizer, boundary,
                           scale);
  const c10::cuda::CUDAGuard device(query.device());
  if (!covered(query, key, value))
    return portable::backward(grad_values, query, key, value, log_forget, values, residual, log_normalizer, boundary,
                              scale);
  const Shape shape = shape_of(query, key, value);
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const Tensor q = addressable(query), k = addressable(key), v = addressable(value);
  const Tensor o = addressable(values), rest = addressable(residual), grad_o = addressable(grad_values),
               normalizer = log_normalizer.contiguous();
  const Tensor first_key_block = boundary.contiguous();
  // Before the first kernel: under deterministic algorithms Torch fills new tensors.
  Tensor grad_query = at::empty(query.sizes(), query.options()), grad_key = at::empty(key.sizes(), key.options());
  Tensor grad_value = at::empty(value.sizes(), value.options()),
         grad_log_forget = at::empty(log_forget.sizes(), log_forget.options());
  const AttentionFamily& family = family_for(query, key, value);
  const Tensor workspace = workspace_of(family.backward_workspace_bytes(shape), query);
  family.backward({.shape = shape,
                   .dtype = dtype_of(query),
                   .scale = scale,
                   .query = operand(q),
                   .key = operand(k),
                   .value = operand(v),
                   .gates = gates_of(log_forget),
                   .values = operand(o),
                   .residual = operand(rest),
                   .grad_values = operand(grad_o),
                   .log_normalizer = normalizer.const_data_ptr<float>(),
                   .first_key_block = first_key_block.const_data_ptr<int32_t>(),
                   .grad_query = grad_query.mutable_data_ptr(),
                   .grad_key = grad_key.mutable_data_ptr(),
                   .grad_value = grad_value.mutable_data_ptr(),
                   .grad_log_forget = grad_log_forget.mutable_data_ptr<float>(),
                   .workspace = workspace.mutable_data_ptr(),
                   .deterministic = at::globalContext().deterministicAlgorithms(),
                   .float_sums = !sums_in_16_bits_allowed(),
                   .stream = stream});
  return {grad_query, grad_key, grad_value, grad_log_forget};
}

}  // namespace

TORCH_LIBRARY_IMPL(lethe, CUDA, library) {
  library.impl("_forgetting_attention_forward", forward);
  library.impl("_forgetting_attention_backward", backward);
  library.impl("forgetting_attention_implementation", implementation);
}

}  // namespace lethe
