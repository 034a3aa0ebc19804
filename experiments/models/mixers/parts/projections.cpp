#include "experiments/models/mixers/parts/projections.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

double machine_epsilon(torch::Dtype dtype) {
  switch (dtype) {
    case torch::kBFloat16: return std::numeric_limits<c10::BFloat16>::epsilon();
    case torch::kFloat16: return std::numeric_limits<c10::Half>::epsilon();
    case torch::kFloat64: return std::numeric_limits<double>::epsilon();
    default: return std::numeric_limits<float>::epsilon();
  }
}

}  // namespace

void ProjectionConfig::check(int64_t head_dim) const {
  RotationConfig::check();
  expect(!rope || head_dim % 2 == 0, "rope", "an even head dim", std::to_string(head_dim));
}

TokensAndShift::TokensAndShift(const Tensor& of_layer, bool kv_shift, const Past* past)
    : x(of_layer), first(past ? past->tokens : 0), repeated(kv_shift && first > 0) {
  if (repeated) x = torch::cat({past->kept[0], x}, 1);
  first -= repeated;
}

Tensor TokensAndShift::own(const Tensor& of_all) const {
  return repeated && of_all.defined() ? of_all.narrow(1, 1, of_all.size(1) - 1) : of_all;
}

HeadInputs TokensAndShift::own(const HeadInputs& of_all) const {
  return {own(of_all.query), own(of_all.key), own(of_all.value), own(of_all.log_forget)};
}

void continue_past(Past& past, const Tensor& x, std::initializer_list<Tensor*> inputs, std::optional<int64_t> most) {
  std::vector<Tensor> kept{x.narrow(1, x.size(1) - 1, 1)};
  for (Tensor* input : inputs) {
    if (past.tokens > 0) *input = torch::cat({past.kept[kept.size()], *input}, 1);
    const int64_t tokens = std::min(most.value_or(input->size(1)), input->size(1));
    kept.push_back(input->narrow(1, input->size(1) - tokens, tokens));
  }
  past.kept = std::move(kept);
}

QueryKeyValue::QueryKeyValue(const Weights& weights, const ModelConfig& model, const ProjectionConfig& own)
    : own(own), heads(model.heads), head_dim(model.head_dim()) {
  const int64_t width = model.width;
  const std::string inner = own.kv_shift ? ".linear.weight" : ".weight";
  query = weights.parameter("q_proj.weight", {width, width}, normal());
  key = weights.parameter("k_proj" + inner, {width, width}, normal());
  value = weights.parameter("v_proj" + inner, {width, width}, normal());
  if (own.kv_shift) {
    key_shift = weights.parameter("k_proj.shift_proj.weight", {heads, width}, normal());
    value_shift = weights.parameter("v_proj.shift_proj.weight", {heads, width}, normal());
  }
  if (own.qk_norm != QkNorm::kNone) {
    const int64_t size = own.qk_norm == QkNorm::kShared ? head_dim : width;
    query_norm = weights.parameter("q_norm.weight", {size}, constant(1));
    key_norm = weights.parameter("k_norm.weight", {size}, constant(1));
  }
}

AttentionInputProducts QueryKeyValue::products_of(const std::vector<Tensor>& products, Rotations& rotations,
                                                  const Tensor& gate_logits, const Tensor& gate_bias,
                                                  int64_t first) const {
  const torch::Dtype wide = accumulation_dtype(products[0].scalar_type());
  const auto widened = [&](const Tensor& weight) { return std::optional(weight.to(wide)); };
  AttentionInputProducts in{
      .query = products[0], .key = products[1], .value = products[2], .heads = heads, .epsilon = kQkNormEpsilon};
  if (own.kv_shift) in.key_shift = products[3], in.value_shift = products[4];
  if (own.qk_norm != QkNorm::kNone) in.query_norm = widened(query_norm), in.key_norm = widened(key_norm);
  if (own.rope) {
    const Rotation rotation = rotations.of(products[0], head_dim, own.rope_base, first);
    in.cosine = rotation.cosine.squeeze(1), in.sine = rotation.sine.squeeze(1);
  }
  if (gate_logits.defined()) in.gate_logits = gate_logits, in.gate_bias = widened(gate_bias);
  return in;
}

HeadInputs QueryKeyValue::heads_of(AttentionInputProducts in, const Rotations& rotations) const {
  if (!own.kv_shift || !rotations.packed) return attention_inputs(in);
  // A sequence's first token has none before it: what is shifted into it are zeros.
  const Packed& packed = *rotations.packed;
  for (Tensor* rows : {&in.query, &in.key, &in.value}) *rows = packed.spaced(*rows);
  for (auto* rows : {&in.key_shift, &in.value_shift, &in.gate_logits})
    if (*rows) *rows = packed.spaced(**rows);
  for (auto* angles : {&in.cosine, &in.sine})
    if (*angles) *angles = packed.spaced((*angles)->unsqueeze(0)).squeeze(0);
  const HeadInputs out = attention_inputs(in);
  return {packed.unspaced(out.query), packed.unspaced(out.key), packed.unspaced(out.value),
          out.log_forget.defined() ? packed.unspaced(out.log_forget) : Tensor()};
}

Tensor QueryKeyValue::logit_bound(torch::Dtype dtype) const {
  if (own.qk_norm == QkNorm::kNone) return {};
  const torch::NoGradGuard no_gradient;
  const auto largest = [&](const Tensor& weight) {  // γ of every head, [H]
    return own.qk_norm == QkNorm::kShared ? weight.abs().max().expand({heads})
                                          : weight.abs().view({heads, head_dim}).amax(-1);
  };
  const double roundings = 1 + 4 * machine_epsilon(dtype);
  return largest(query_norm) * largest(key_norm) * (std::sqrt(static_cast<double>(head_dim)) * roundings);
}

double QueryKeyValue::multiply_adds(const ModelConfig& model, const ProjectionConfig& own) {
  return static_cast<double>(model.width * (3 * model.width + 2 * own.kv_shift * model.heads));
}

int64_t QueryKeyValue::columns(const ModelConfig& model, const ProjectionConfig& own) {
  return model.width * (3 + 2 * own.kv_shift + 2 * (own.qk_norm != QkNorm::kNone));
}

}  // namespace lethe
