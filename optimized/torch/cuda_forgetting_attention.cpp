#include "optimized/torch/cuda_forgetting_attention.hpp"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <array>
#include <limits>

#include "optimized/cuda/attention.hpp"
#include "optimized/cuda/query_sums.hpp"
#include "optimized/torch/dtype.hpp"
#include "optimized/torch/split_columns.hpp"

namespace lethe::cuda {
namespace {

using at::Tensor;

Shape shape_of(const Tensor& query, const Tensor& key, const Tensor& value) {
  return {query.size(0), query.size(1), key.size(1), key.size(2), query.size(2), query.size(3), value.size(3)};
}

// Rows of kernels are whole chunks of 16 bytes.
constexpr int64_t kAlignment = 16;

int64_t whole_chunks(int64_t dim, const Tensor& like) {
  const int64_t chunk = kAlignment / like.element_size();
  return (dim + chunk - 1) / chunk * chunk;
}

bool is_addressable(const Tensor& tensor) {
  const int64_t size = tensor.element_size();
  bool fits = tensor.stride(3) == 1 && reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
  for (int dim = 0; dim < 3; ++dim)
    fits = fits && tensor.stride(dim) > 0 && tensor.stride(dim) * size % kAlignment == 0;
  return fits;
}

// The tensor itself where kernels can address it, else a contiguous copy, with zeros after its rows where these are not whole chunks.
Tensor addressable(const Tensor& tensor) {
  const int64_t dim = tensor.size(3), whole = whole_chunks(dim, tensor);
  if (dim < whole) return at::constant_pad_nd(tensor, {0, whole - dim}, 0).contiguous();
  return is_addressable(tensor) ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

// For the gradient of `tensor`, which kernels read as `read`: its place in a product's gradient where kernels can write there, else a new tensor.
Tensor gradient_of(const Tensor& tensor, const Tensor& read) {
  if (read.size(3) == tensor.size(3)) {
    const Tensor place = gradient_like(tensor);
    if (is_addressable(place)) return place;
  }
  return at::empty(read.sizes(), read.options());
}

// Of rows of whole chunks, those of `dim`.
Tensor without_padding(const Tensor& tensor, int64_t dim) {
  return tensor.size(3) == dim ? tensor : tensor.narrow(3, 0, dim).contiguous();
}

Operand operand(const Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}
MutableOperand written(const Tensor& tensor) {
  return {tensor.mutable_data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

Gates gates_of(const Tensor& log_forget) {
  return {log_forget.const_data_ptr<float>(), log_forget.stride(0), log_forget.stride(1), log_forget.stride(2)};
}

int window_of(const AttentionInputs& in) {
  return in.window ? static_cast<int>(std::min<int64_t>(*in.window, kLargestWindow)) : kNoWindow;
}

Tensor workspace_of(size_t bytes, const Tensor& like) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

// dq / scale in the workspace of a backward that did not finish it.
Tensor sums_in(const Tensor& workspace, const AttentionFamily& family, const Shape& shape) {
  TORCH_INTERNAL_ASSERT(shape.key_dim == shape.value_dim && (shape.key_dim == 64 || shape.key_dim == 128));
  const auto* begin = static_cast<const std::byte*>(workspace.const_data_ptr());
  const auto* sums = reinterpret_cast<const std::byte*>(family.query_sums(shape, workspace.mutable_data_ptr()));
  const int64_t rows = shape.batch * shape.query_heads,
                slices = whole_blocks(shape.query_length) / 64 * (shape.key_dim / 64);
  return workspace.narrow(0, sums - begin, rows * slices * kSliceFloats * static_cast<int64_t>(sizeof(float)))
      .view(at::kFloat)
      .view({rows, slices, kSliceFloats});
}

// Torch's switch for attention that may add up in 16 bits, torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True): off unless it is
// turned on.
bool sums_in_16_bits_allowed() { return at::globalContext().allowFP16BF16ReductionMathSDP(); }

}  // namespace

AttentionOutputs forgetting_attention_forward(const AttentionFamily& family, const AttentionInputs& in) {
  const Tensor &query = in.query, &key = in.key, &value = in.value, &log_forget = in.log_forget;
  const double scale = in.scale;
  const bool keep_residual = in.keep_residual && has_residual(query.scalar_type());
  const c10::cuda::CUDAGuard device(query.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const Tensor q = addressable(query), k = addressable(key), v = addressable(value);
  const Shape shape = shape_of(q, k, v);
  const std::array<int64_t, 4> sizes = {shape.batch, shape.query_length, shape.query_heads, shape.value_dim};
  Tensor values = at::empty(sizes, query.options());
  Tensor residual = keep_residual ? at::empty(sizes, query.options()) : at::empty({0}, query.options());
  Tensor log_normalizer = at::empty({shape.batch, shape.query_length, shape.query_heads}, log_forget.options());
  Tensor visited_pairs = at::empty({shape.batch, shape.query_heads}, query.options().dtype(at::kLong));
  Tensor boundary = at::empty({shape.batch, shape.query_heads, (shape.query_length + kQueryRows - 1) / kQueryRows},
                              query.options().dtype(at::kInt));
  // Rounded up: a bound that float32 rounded down would be no bound.
  const Tensor bound = in.logit_bound ? in.logit_bound->to(at::kDouble)
                                            .mul(1 + 1e-6)
                                            .to(at::kFloat)
                                            .expand({shape.batch, shape.query_heads})
                                            .contiguous()
                                      : Tensor();
  const Tensor workspace = workspace_of(family.forward_workspace_bytes(shape), query);
  family.forward({.shape = shape,
                  .dtype = dtype_of(query.scalar_type()),
                  .scale = scale,
                  .query = operand(q),
                  .key = operand(k),
                  .value = operand(v),
                  .gates = gates_of(log_forget),
                  .log_pruning_tolerance = in.log_pruning_tolerance.value_or(-std::numeric_limits<double>::infinity()),
                  .logit_bound = bound.defined() ? bound.const_data_ptr<float>() : nullptr,
                  .prune_by_mass = in.prune_by_mass,
                  .window = window_of(in),
                  .values = values.mutable_data_ptr(),
                  .residual = keep_residual ? residual.mutable_data_ptr() : nullptr,
                  .log_normalizer = log_normalizer.mutable_data_ptr<float>(),
                  .visited_pairs = visited_pairs.mutable_data_ptr<int64_t>(),
                  .first_key_block = boundary.mutable_data_ptr<int32_t>(),
                  .workspace = workspace.mutable_data_ptr(),
                  .stream = stream});
  const int64_t dim = value.size(3);
  return {without_padding(values, dim), log_normalizer, visited_pairs, boundary,
          keep_residual ? without_padding(residual, dim) : residual};
}

AttentionGradients forgetting_attention_backward(const AttentionFamily& family, const Tensor& grad_values,
                                                 const AttentionInputs& in, const AttentionOutputs& out,
                                                 const AttentionHandover& handover) {
  const Tensor &query = in.query, &key = in.key, &value = in.value, &log_forget = in.log_forget;
  const double scale = in.scale;
  const c10::cuda::CUDAGuard device(query.device());
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  const Tensor q = addressable(query), k = addressable(key), v = addressable(value);
  const Shape shape = shape_of(q, k, v);
  const bool delta_given = handover.delta.defined(), finishes = !handover.query_sums;
  const Tensor o = delta_given ? Tensor() : addressable(out.values), grad_o = addressable(grad_values),
               rest = !delta_given && out.residual.numel() > 0 ? addressable(out.residual) : Tensor(),
               normalizer = out.log_normalizer.contiguous();
  const Tensor first_key_block = out.boundary.contiguous();
  // Before the first kernel: under deterministic algorithms Torch fills new tensors.
  const Tensor grad_query = finishes ? gradient_of(query, q) : Tensor(), grad_key = gradient_of(key, k),
               grad_value = gradient_of(value, v);
  const Tensor grad_log_forget = at::empty(log_forget.sizes(), log_forget.options());
  const Tensor workspace = workspace_of(family.backward_workspace_bytes(shape), query);
  family.backward({.shape = shape,
                   .dtype = dtype_of(query.scalar_type()),
                   .scale = scale,
                   .query = operand(q),
                   .key = operand(k),
                   .value = operand(v),
                   .gates = gates_of(log_forget),
                   .window = window_of(in),
                   .values = o.defined() ? operand(o) : Operand{},
                   .residual = rest.defined() ? operand(rest) : Operand{},
                   .grad_values = operand(grad_o),
                   .delta = delta_given ? handover.delta.const_data_ptr<float>() : nullptr,
                   .log_normalizer = normalizer.const_data_ptr<float>(),
                   .first_key_block = first_key_block.const_data_ptr<int32_t>(),
                   .grad_query = finishes ? written(grad_query) : MutableOperand{},
                   .grad_key = written(grad_key),
                   .grad_value = written(grad_value),
                   .grad_log_forget = grad_log_forget.mutable_data_ptr<float>(),
                   .workspace = workspace.mutable_data_ptr(),
                   .deterministic = at::globalContext().deterministicAlgorithms(),
                   .float_sums = !sums_in_16_bits_allowed(),
                   .finish_query = finishes,
                   .stream = stream});
  return {finishes ? without_padding(grad_query, query.size(3)) : Tensor(), without_padding(grad_key, key.size(3)),
          without_padding(grad_value, value.size(3)), grad_log_forget,
          finishes ? Tensor() : sums_in(workspace, family, shape)};
}

}  // namespace lethe::cuda
