#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "optimized/cpu/layers/attention_inputs.hpp"
#include "optimized/operators/rows.hpp"
#include "optimized/torch/dtype.hpp"
#include "optimized/torch/layers.hpp"
#include "optimized/torch/layers/attention_input_arguments.hpp"
#include "optimized/torch/layers/backward.hpp"
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

using Arguments = AttentionInputArguments;
using Outputs = HeadInputs;
using Gradients = AttentionInputGradients;

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

// query_sums: in place of the query's gradient where it is defined.
Gradients gradients_of(const Outputs& given_gradients, const Tensor& query_sums, double query_scale,
                       const Arguments& given) {
  const Arguments in = addressable(given);
  const auto gradient_rows = [](const Tensor& gradient, const OptionalTensor& product) {
    return product && gradient.defined() ? addressable(gradient.flatten(2)) : OptionalTensor();
  };
  const OptionalTensor arriving[] = {gradient_rows(given_gradients.query, in.query),
                                     gradient_rows(given_gradients.key, in.key),
                                     gradient_rows(given_gradients.value, in.value)};
  const Tensor grad_log_forget = in.gate_logits ? given_gradients.log_forget.contiguous() : Tensor();
  const Gradients out = placed_gradients(given);
  if (in.first().numel() == 0) {  // no data pointer: a kernel would take the parts for absent
    for (const Tensor& sum : {out.query_norm, out.key_norm, out.gate_bias}) sum.zero_();
    return out;
  }
  layers::AttentionInputs call = call_of(in);
  const Tensor* products[] = {&out.query, &out.key, &out.value};
  for (int i = 0; i < 3; ++i) {
    if (!call.parts[i].product.data) continue;
    call.parts[i].grad_values = rows(arriving[i]);
    call.parts[i].grad_product = mutable_rows(*products[i]);
  }
  if (query_sums.defined())
    call.parts[0].grad_sums = {query_sums.const_data_ptr<float>(), query_sums.size(1), static_cast<float>(query_scale)};
  if (in.key_shift) call.parts[1].grad_shift = mutable_rows(out.key_shift);
  if (in.value_shift) call.parts[2].grad_shift = mutable_rows(out.value_shift);
  if (in.query_norm) call.parts[0].grad_norm = out.query_norm.mutable_data_ptr();
  if (in.key_norm) call.parts[1].grad_norm = out.key_norm.mutable_data_ptr();
  if (in.gate_logits) call.grad_log_forget = grad_log_forget.const_data_ptr();
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

Gradients run_backward(const Outputs& gradients, const Arguments& in) {
  check_arguments(in);
  check_gradients(gradients, in);
  return gradients_of(gradients, {}, 1, in);
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

bool changes_anything(const Arguments& in) { return in.query || in.key || in.value || in.gate_logits; }

}  // namespace

HeadInputs attention_inputs(const AttentionInputProducts& in) {
  check_arguments(in);
  const auto heads = [&](const Tensor& product) {
    return product.unflatten(-1, {in.heads, product.size(-1) / in.heads});
  };
  const Arguments own = changed(in);
  if (!changes_anything(own)) return {heads(in.query), heads(in.key), heads(in.value), {}};
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lethe::_attention_inputs_forward", "")
                             .typed<decltype(forward<run>)>();
  const auto [query, key, value, log_forget] =
      op.call(own.query, own.key, own.value, own.key_shift, own.value_shift, own.query_norm, own.key_norm, own.cosine,
              own.sine, own.gate_logits, own.gate_bias, own.heads, own.epsilon);
  return {own.query ? query : heads(in.query), own.key ? key : heads(in.key), own.value ? value : heads(in.value),
          in.gate_logits ? log_forget : Tensor()};
}

AttentionInputGradients attention_inputs_backward(const HeadInputs& gradients, const Tensor& query_sums,
                                                  double query_scale, const AttentionInputProducts& products) {
  const Arguments own = changed(products);
  AttentionInputGradients out;
  if (changes_anything(own))
    out = gradients_of({gradients.query, gradients.key, gradients.value, gradients.log_forget}, query_sums, query_scale,
                       own);
  if (!own.query) out.query = gradients.query.flatten(2);
  if (!own.key) out.key = gradients.key.flatten(2);
  if (!own.value) out.value = gradients.value.flatten(2);
  for (const auto& [given, gradient] : {std::pair(&own.key_shift, &out.key_shift),
                                        {&own.value_shift, &out.value_shift},
                                        {&own.query_norm, &out.query_norm},
                                        {&own.key_norm, &out.key_norm},
                                        {&own.gate_logits, &out.gate_logits},
                                        {&own.gate_bias, &out.gate_bias}})
    if (!*given) *gradient = Tensor();
  return out;
}

}  // namespace lethe
