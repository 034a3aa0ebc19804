#include "optimized/torch/layers/attention_input_arguments.hpp"

#include <utility>

#include "optimized/torch/layers/backward.hpp"

namespace lethe {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

void check_norm(const char* name, const OptionalTensor& norm, const OptionalTensor& product,
                const AttentionInputArguments& in) {
  if (!norm) return;
  TORCH_CHECK(product, name, ": expected none without its product, found one");
  check_like(name, *norm, accumulation_dtype(product->scalar_type()), *product);
  check_rank(name, *norm, 1, "[D] or [H·D]");
  const c10::SymInt size = norm->sym_size(0), head_dim = in.head_dim();
  TORCH_CHECK(size == head_dim || size == head_dim * in.heads, name, ": expected ", head_dim, " or ",
              head_dim * in.heads, " numbers, found ", size);
}

void check_rotation(const AttentionInputArguments& in) {
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

}  // namespace

void check_arguments(const AttentionInputArguments& in) {
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
  check_epsilon(in.epsilon);
}

void check_gradients(const HeadInputs& gradients, const AttentionInputArguments& in) {
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

bool changes_query(const AttentionInputProducts& products) { return products.query_norm || products.cosine; }

AttentionInputArguments changed(const AttentionInputProducts& in) {
  const auto if_changed = [](bool changes, const Tensor& product) {
    return changes ? OptionalTensor(product) : OptionalTensor();
  };
  return {if_changed(changes_query(in), in.query),
          if_changed(in.key_shift || in.key_norm || in.cosine, in.key),
          if_changed(in.value_shift.has_value(), in.value),
          in.key_shift,
          in.value_shift,
          in.query_norm,
          in.key_norm,
          in.cosine,
          in.sine,
          in.gate_logits,
          in.gate_bias,
          in.heads,
          in.epsilon};
}

void check_arguments(const AttentionInputProducts& in) {
  check_layout("query", in.query);
  check_layout("key", in.key);
  check_layout("value", in.value);
  for (const auto& [name, tensor] :
       {std::pair("key_shift", &in.key_shift), std::pair("value_shift", &in.value_shift),
        std::pair("query_norm", &in.query_norm), std::pair("key_norm", &in.key_norm), std::pair("cosine", &in.cosine),
        std::pair("sine", &in.sine), std::pair("gate_logits", &in.gate_logits), std::pair("gate_bias", &in.gate_bias)})
    if (*tensor) check_layout(name, **tensor);
  check_arguments(AttentionInputArguments{in.query, in.key, in.value, in.key_shift, in.value_shift, in.query_norm,
                                          in.key_norm, in.cosine, in.sine, in.gate_logits, in.gate_bias, in.heads,
                                          in.epsilon});
}

}  // namespace lethe
