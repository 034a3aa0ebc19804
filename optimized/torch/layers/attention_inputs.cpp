#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "optimized/cpu/layers/attention_inputs.hpp"
#include "optimized/operators/checks.hpp"
#include "optimized/operators/rows.hpp"
#include "optimized/torch/dtype.hpp"
#include "optimized/torch/layers.hpp"
#include "optimized/torch/rules.hpp"
#include "optimized/torch/split_columns.hpp"
#ifdef LETHE_CUDA_KERNELS
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "optimized/cuda/layers/attention_inputs.hpp"
#endif

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The outputs are fresh tensors, so this operator has only what changes; an output without its product is empty.
constexpr const char* kForward =
    "_attention_inputs_forward(Tensor? query_product, Tensor? key_product, Tensor? value_product, Tensor? key_shift, "
    "Tensor? value_shift, Tensor? query_norm, Tensor? key_norm, Tensor? cosine, Tensor? sine, Tensor? gate_logits, "
    "Tensor? gate_bias, int heads, float epsilon) -> (Tensor query, Tensor key, Tensor value, Tensor log_forget)";
constexpr const char* kBackward =
    "_attention_inputs_backward(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_log_forget, "
    "Tensor? query_product, Tensor? key_product, Tensor? value_product, Tensor? key_shift, Tensor? value_shift, "
    "Tensor? query_norm, Tensor? key_norm, Tensor? cosine, Tensor? sine, Tensor? gate_logits, Tensor? gate_bias, "
    "int heads, float epsilon) -> (Tensor grad_query_product, Tensor grad_key_product, Tensor grad_value_product, "
    "Tensor grad_key_shift, Tensor grad_value_shift, Tensor grad_query_norm, Tensor grad_key_norm, Tensor "
    "grad_gate_logits, Tensor grad_gate_bias)";

struct Arguments {
  OptionalTensor query, key, value, key_shift, value_shift, query_norm, key_norm, cosine, sine, gate_logits, gate_bias;
  int64_t heads;
  double epsilon;

  // A tensor [B,T,...] of the products' dtype, which sets B, T, dtype and device of all.
  const Tensor& first() const {
    for (const OptionalTensor* tensor : {&query, &key, &value, &gate_logits})
      if (*tensor) return **tensor;
    TORCH_CHECK(false, "attention_inputs: expected query, key, value or gate_logits, found none");
  }
  // One of the products that has heads of head_dim columns, if any.
  const Tensor* product() const {
    for (const OptionalTensor* tensor : {&query, &key, &value})
      if (*tensor) return &**tensor;
    return nullptr;
  }
  c10::SymInt head_dim() const { return product() ? product()->sym_size(2) / heads : c10::SymInt(0); }
  at::TensorOptions wide_options() const { return first().options().dtype(accumulation_dtype(first().scalar_type())); }
};

struct Outputs {
  Tensor query, key, value, log_forget;
};
struct Gradients {
  Tensor query, key, value, key_shift, value_shift, query_norm, key_norm, gate_logits, gate_bias;
};

// ---- Checks

void check_norm(const char* name, const OptionalTensor& norm, const OptionalTensor& product, const Arguments& in) {
  if (!norm) return;
  TORCH_CHECK(product, name, ": expected none without its product, found one");
  check_like(name, *norm, accumulation_dtype(product->scalar_type()), *product);
  check_rank(name, *norm, 1, "[D] or [H·D]");
  const c10::SymInt size = norm->sym_size(0), head_dim = in.head_dim();
  TORCH_CHECK(size == head_dim || size == head_dim * in.heads, name, ": expected ", head_dim, " or ",
              head_dim * in.heads, " numbers, found ", size);
}

void check_rotation(const Arguments& in) {
  TORCH_CHECK(in.cosine.has_value() == in.sine.has_value(), "cosine: expected sine with it and none without, found ",
              in.cosine ? "no sine" : "only sine");
  if (!in.cosine || !(in.query || in.key)) return;
  const Tensor& product = in.query ? *in.query : *in.key;
  const c10::SymInt head_dim = in.head_dim();
  TORCH_CHECK(head_dim % 2 == 0, "cosine: expected an even head dim, found ", head_dim);
  for (const auto& [name, angles] : {std::pair("cosine", &in.cosine), std::pair("sine", &in.sine)}) {
    check_like(name, **angles, accumulation_dtype(product.scalar_type()), product);
    check_shape(name, **angles, {product.sym_size(1), head_dim / 2});
  }
}

void check_arguments(const Arguments& in) {
  const Tensor& first = in.first();
  const at::ScalarType dtype = first.scalar_type();
  const char* const name = in.query ? "query" : in.key ? "key" : in.value ? "value" : "gate_logits";
  check_floating(name, first);
  check_rank(name, first, 3, "[B,T,H·D]");
  TORCH_CHECK(in.heads >= 1, "heads: expected at least 1, found ", in.heads);
  const c10::SymInt batch = first.sym_size(0), length = first.sym_size(1);
  const auto check = [&](const char* of, const OptionalTensor& tensor, const c10::SymInt& columns) {
    if (!tensor) return;
    check_like(of, *tensor, dtype, first);
    check_shape(of, *tensor, {batch, length, columns});
  };
  if (in.product()) {
    const c10::SymInt width = first.sym_size(2);
    TORCH_CHECK(width >= 1 && width % in.heads == 0, name, ": expected a multiple of ", in.heads,
                " heads in the last dimension, found ", width);
    check("key", in.key, width);
    check("value", in.value, width);
  }
  TORCH_CHECK(!in.key_shift || in.key, "key_shift: expected none without key, found one");
  TORCH_CHECK(!in.value_shift || in.value, "value_shift: expected none without value, found one");
  check("key_shift", in.key_shift, in.heads);
  check("value_shift", in.value_shift, in.heads);
  check("gate_logits", in.gate_logits, in.heads);
  check_norm("query_norm", in.query_norm, in.query, in);
  check_norm("key_norm", in.key_norm, in.key, in);
  check_rotation(in);
  if (in.gate_bias) {
    TORCH_CHECK(in.gate_logits, "gate_bias: expected none without gate_logits, found one");
    check_like("gate_bias", *in.gate_bias, accumulation_dtype(dtype), first);
    check_shape("gate_bias", *in.gate_bias, {in.heads});
  }
  TORCH_CHECK(in.epsilon >= 0, "epsilon: expected a number >= 0, found ", in.epsilon);
}

void check_gradients(const Outputs& gradients, const Arguments& in) {
  const auto check = [&](const char* name, const Tensor& gradient, const OptionalTensor& product) {
    if (!product) return;
    check_like(name, gradient, product->scalar_type(), *product);
    check_shape(name, gradient, {product->sym_size(0), product->sym_size(1), in.heads, in.head_dim()});
  };
  check("grad_query", gradients.query, in.query);
  check("grad_key", gradients.key, in.key);
  check("grad_value", gradients.value, in.value);
  if (!in.gate_logits) return;
  check_like("grad_log_forget", gradients.log_forget, accumulation_dtype(in.first().scalar_type()), in.first());
  check_shape("grad_log_forget", gradients.log_forget, in.gate_logits->sym_sizes());
}

// ---- Shapes

Outputs empty_outputs(const Arguments& in) {
  const auto heads_like = [&](const OptionalTensor& product) {
    if (!product) return at::empty({0}, in.first().options());
    return at::empty_symint({product->sym_size(0), product->sym_size(1), in.heads, in.head_dim()}, product->options());
  };
  const at::TensorOptions wide = in.wide_options();
  return {heads_like(in.query), heads_like(in.key), heads_like(in.value),
          in.gate_logits ? at::empty_symint(in.gate_logits->sym_sizes(), wide) : at::empty({0}, wide)};
}

Gradients empty_gradients(const Arguments& in) {
  const auto like = [&](const OptionalTensor& tensor) {
    return tensor ? at::empty_symint(tensor->sym_sizes(), tensor->options()) : at::empty({0}, in.first().options());
  };
  return {like(in.query),      like(in.key),      like(in.value),       like(in.key_shift), like(in.value_shift),
          like(in.query_norm), like(in.key_norm), like(in.gate_logits), like(in.gate_bias)};
}

// The same, the gradients of pieces of a product in their places.
Gradients placed_gradients(const Arguments& in) {
  Gradients out = empty_gradients(in);
  const auto place = [](Tensor& gradient, const OptionalTensor& product) {
    if (product) gradient = gradient_like(*product);
  };
  place(out.query, in.query), place(out.key, in.key), place(out.value, in.value);
  place(out.key_shift, in.key_shift), place(out.value_shift, in.value_shift), place(out.gate_logits, in.gate_logits);
  return out;
}

Outputs output_shapes(const Arguments& in) {
  check_arguments(in);
  return empty_outputs(in);
}

Gradients gradient_shapes(const Outputs& gradients, const Arguments& in) {
  check_arguments(in);
  check_gradients(gradients, in);
  return empty_gradients(in);
}

// ---- Kernels

OptionalTensor addressable(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(rows_of(*tensor).tensor) : OptionalTensor();
}

OptionalTensor contiguous_of(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(tensor->contiguous()) : OptionalTensor();
}

// The arguments as the kernels read them.
Arguments addressable(const Arguments& in) {
  return {addressable(in.query),
          addressable(in.key),
          addressable(in.value),
          addressable(in.key_shift),
          addressable(in.value_shift),
          contiguous_of(in.query_norm),
          contiguous_of(in.key_norm),
          contiguous_of(in.cosine),
          contiguous_of(in.sine),
          addressable(in.gate_logits),
          contiguous_of(in.gate_bias),
          in.heads,
          in.epsilon};
}

layers::Rows rows(const OptionalTensor& tensor) {
  if (!tensor) return {};
  const TensorRows rows = rows_of(*tensor);
  return {rows.data(), rows.pitch};
}
layers::MutableRows mutable_rows(const Tensor& tensor) { return {tensor.mutable_data_ptr(), tensor.stride(1)}; }
const void* data(const OptionalTensor& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }

// in: addressable
layers::AttentionInputs call_of(const Arguments& in) {
  const Tensor& first = in.first();
  const int64_t head_dim = in.product() ? in.product()->size(2) / in.heads : 0;
  const auto part = [&](const OptionalTensor& product, const OptionalTensor& shift, const OptionalTensor& norm,
                        bool rotated) {
    return layers::HeadRows{.product = rows(product),
                            .shift = rows(shift),
                            .norm = data(norm),
                            .norm_per_head = norm && norm->size(0) != head_dim,
                            .rotated = rotated};
  };
  const bool rotated = in.cosine.has_value();
  return {.batch = first.size(0),
          .length = first.size(1),
          .heads = in.heads,
          .head_dim = head_dim,
          .dtype = dtype_of(first.scalar_type()),
          .epsilon = in.epsilon,
          .parts = {part(in.query, {}, in.query_norm, rotated), part(in.key, in.key_shift, in.key_norm, rotated),
                    part(in.value, in.value_shift, {}, false)},
          .cosine = data(in.cosine),
          .sine = data(in.sine),
          .gate_logits = rows(in.gate_logits),
          .gate_bias = data(in.gate_bias)};
}

Outputs run(const Arguments& given) {
  check_arguments(given);
  const Arguments in = addressable(given);
  const Outputs out = empty_outputs(in);
  layers::AttentionInputs call = call_of(in);
  call.parts[0].values = out.query.mutable_data_ptr();
  call.parts[1].values = out.key.mutable_data_ptr();
  call.parts[2].values = out.value.mutable_data_ptr();
  call.log_forget = out.log_forget.mutable_data_ptr();
#ifdef LETHE_CUDA_KERNELS
  if (in.first().is_cuda()) {
    const c10::cuda::CUDAGuard device(in.first().device());
    layers::attention_inputs(call, at::cuda::getCurrentCUDAStream());
    return out;
  }
#endif
  cpu::attention_inputs(call);
  return out;
}

Gradients run_backward(const Outputs& given_gradients, const Arguments& given) {
  check_arguments(given);
  check_gradients(given_gradients, given);
  const Arguments in = addressable(given);
  const auto gradient_rows = [](const Tensor& gradient, const OptionalTensor& product) {
    return product ? addressable(gradient.flatten(2)) : OptionalTensor();
  };
  const OptionalTensor arriving[] = {gradient_rows(given_gradients.query, in.query),
                                     gradient_rows(given_gradients.key, in.key),
                                     gradient_rows(given_gradients.value, in.value)};
  const Tensor grad_log_forget = given_gradients.log_forget.contiguous();
  const Gradients out = placed_gradients(given);
  if (in.first().numel() == 0) {  // no data pointer: a kernel would take the parts for absent
    for (const Tensor& sum : {out.query_norm, out.key_norm, out.gate_bias}) sum.zero_();
    return out;
  }
  layers::AttentionInputs call = call_of(in);
  const Tensor* products[] = {&out.query, &out.key, &out.value};
  for (int i = 0; i < 3; ++i) {
    if (!arriving[i]) continue;
    call.parts[i].grad_values = rows(arriving[i]);
    call.parts[i].grad_product = mutable_rows(*products[i]);
  }
  if (in.key_shift) call.parts[1].grad_shift = mutable_rows(out.key_shift);
  if (in.value_shift) call.parts[2].grad_shift = mutable_rows(out.value_shift);
  if (in.query_norm) call.parts[0].grad_norm = out.query_norm.mutable_data_ptr();
  if (in.key_norm) call.parts[1].grad_norm = out.key_norm.mutable_data_ptr();
  call.grad_log_forget = grad_log_forget.const_data_ptr();
  if (in.gate_logits) call.grad_gate_logits = mutable_rows(out.gate_logits);
  if (in.gate_bias) call.grad_gate_bias = out.gate_bias.mutable_data_ptr();
#ifdef LETHE_CUDA_KERNELS
  if (in.first().is_cuda()) {
    const c10::cuda::CUDAGuard device(in.first().device());
    const Tensor workspace = at::empty({static_cast<int64_t>(layers::attention_inputs_workspace_bytes(call))},
                                       in.first().options().dtype(at::kByte));
    layers::attention_inputs_backward(call, workspace.mutable_data_ptr(), at::cuda::getCurrentCUDAStream());
    return out;
  }
#endif
  cpu::attention_inputs_backward(call);
  return out;
}

// ---- Registration

// `run` with the arguments of kForward.
template <Outputs (*run)(const Arguments&)>
std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const OptionalTensor& query_product,
                                                   const OptionalTensor& key_product,
                                                   const OptionalTensor& value_product, const OptionalTensor& key_shift,
                                                   const OptionalTensor& value_shift, const OptionalTensor& query_norm,
                                                   const OptionalTensor& key_norm, const OptionalTensor& cosine,
                                                   const OptionalTensor& sine, const OptionalTensor& gate_logits,
                                                   const OptionalTensor& gate_bias, int64_t heads, double epsilon) {
  auto out = run({query_product, key_product, value_product, key_shift, value_shift, query_norm, key_norm, cosine, sine,
                  gate_logits, gate_bias, heads, epsilon});
  return {out.query, out.key, out.value, out.log_forget};
}

// `run` with the arguments of kBackward.
template <Gradients (*run)(const Outputs&, const Arguments&)>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_query, const Tensor& grad_key, const Tensor& grad_value, const Tensor& grad_log_forget,
    const OptionalTensor& query_product, const OptionalTensor& key_product, const OptionalTensor& value_product,
    const OptionalTensor& key_shift, const OptionalTensor& value_shift, const OptionalTensor& query_norm,
    const OptionalTensor& key_norm, const OptionalTensor& cosine, const OptionalTensor& sine,
    const OptionalTensor& gate_logits, const OptionalTensor& gate_bias, int64_t heads, double epsilon) {
  auto out = run({grad_query, grad_key, grad_value, grad_log_forget},
                 {query_product, key_product, value_product, key_shift, value_shift, query_norm, key_norm, cosine, sine,
                  gate_logits, gate_bias, heads, epsilon});
  return {out.query,      out.key,      out.value,       out.key_shift, out.value_shift,
          out.query_norm, out.key_norm, out.gate_logits, out.gate_bias};
}

TORCH_LIBRARY_FRAGMENT(lethe, library) {
  library.def(kForward);
  library.def(kBackward);
}
void implement(torch::Library& library) {
  library.impl("_attention_inputs_forward", forward<run>);
  library.impl("_attention_inputs_backward", backward<run_backward>);
}
TORCH_LIBRARY_IMPL(lethe, CPU, library) { implement(library); }
#ifdef LETHE_CUDA_KERNELS
TORCH_LIBRARY_IMPL(lethe, CUDA, library) { implement(library); }
#endif
TORCH_LIBRARY_IMPL(lethe, Meta, library) {
  library.impl("_attention_inputs_forward", forward<output_shapes>);
  library.impl("_attention_inputs_backward", backward<gradient_shapes>);
}
TORCH_LIBRARY_IMPL(lethe, Autograd, library) {
  library.impl("_attention_inputs_forward", derivative_rule());
  library.impl("_attention_inputs_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

HeadInputs attention_inputs(const AttentionInputProducts& in) {
  check_layout("query", in.query);
  check_layout("key", in.key);
  check_layout("value", in.value);
  check_arguments({in.query, in.key, in.value, in.key_shift, in.value_shift, in.query_norm, in.key_norm, in.cosine,
                   in.sine, in.gate_logits, in.gate_bias, in.heads, in.epsilon});
  const bool rotated = in.cosine.has_value(), changes_query = in.query_norm || rotated,
             changes_key = in.key_shift || in.key_norm || rotated, changes_value = in.value_shift.has_value();
  const auto changed = [](bool changes, const Tensor& product) {
    return changes ? OptionalTensor(product) : OptionalTensor();
  };
  const auto heads = [&](const Tensor& product) {
    return product.unflatten(-1, {in.heads, product.size(-1) / in.heads});
  };
  if (!changes_query && !changes_key && !changes_value && !in.gate_logits)
    return {heads(in.query), heads(in.key), heads(in.value), {}};
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_attention_inputs_forward", "")
                             .typed<decltype(forward<run>)>();
  const auto [query, key, value, log_forget] =
      op.call(changed(changes_query, in.query), changed(changes_key, in.key), changed(changes_value, in.value),
              in.key_shift, in.value_shift, in.query_norm, in.key_norm, in.cosine, in.sine, in.gate_logits,
              in.gate_bias, in.heads, in.epsilon);
  return {changes_query ? query : heads(in.query), changes_key ? key : heads(in.key),
          changes_value ? value : heads(in.value), in.gate_logits ? log_forget : Tensor()};
}

}  // namespace lethe
