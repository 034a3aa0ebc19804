#include "experiments/models/mixers/attention.hpp"

#include <ATen/Context.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/output_end.hpp"
#include "optimized/torch/forgetting_attention.hpp"
#include "optimized/torch/implementations.hpp"

namespace lethe {

using torch::Tensor;

namespace {

void check_attention(const ModelConfig& model, const AttentionConfig& own) {
  const auto& tolerance = own.log_pruning_tolerance;
  own.ProjectionConfig::check(model.head_dim());
  own.ForgetGateConfig::check();
  expect(!tolerance || (*tolerance <= 0 && std::isfinite(*tolerance)), "log_pruning_tolerance",
         "≤ 0 and finite, or absent", std::to_string(tolerance.value_or(0)));
}

MixerLayer make_attention(const ModelConfig& model, const AttentionConfig& own, const Weights& weights) {
  const QueryKeyValue inputs(weights, model, own);
  const ForgetGateWeights forget(weights, model, own);
  const OutputEnd end(weights, model);
  // The output gate's columns begin at a multiple of 16 bytes.
  const Product products = weights.product(
      {inputs.query, inputs.key, inputs.value, end.gate, inputs.key_shift, inputs.value_shift, forget.weight});
  const auto tolerance = own.log_pruning_tolerance;
  const bool prune_by_mass = own.prune_by_mass;
  return [=](const Tensor& x, Rotations& rotations, std::any* trace, Past* past) {
    const TokensAndShift given(x, own.kv_shift, past);
    const std::vector<Tensor> product = products.pieces(given.x);
    const AttentionInputProducts of_heads = inputs.products_of(
        {product[0], product[1], product[2], product[4], product[5]}, rotations, product[6], forget.bias, given.first);
    const Tensor bound = tolerance || trace ? inputs.logit_bound(x.scalar_type()) : Tensor();
    const auto bound_argument = bound.defined() ? std::optional<Tensor>(bound) : std::nullopt;
    if (!trace && !past && !rotations.packed) {
      const auto constant = of_heads.gate_logits ? std::nullopt : std::optional(forget.constant_gate(x, end.heads));
      return end(GatedAttention{.products = of_heads,
                                .log_forget = constant,
                                .log_pruning_tolerance = tolerance,
                                .logit_bound = bound_argument,
                                .prune_by_mass = prune_by_mass},
                 product[3]);
    }
    auto [q, k, v, log_gate] = given.own(inputs.heads_of(of_heads, rotations));
    Tensor log_forget = log_gate.defined() ? log_gate : forget.constant_gate(x, end.heads);  // [B,T,H]
    if (past) continue_past(*past, x, {&k, &v, &log_forget});
    const Tensor output_gate = given.own(product[3]);
    const auto sequences = rotations.cu_seqlens();
    if (!trace) {
      return end(forgetting_attention(q, k, v, log_forget, std::nullopt, tolerance, bound_argument, std::nullopt,
                                      sequences, prune_by_mass),
                 output_gate);
    }
    Tensor o, visited_pairs;
    std::tie(o, std::ignore, visited_pairs) = forgetting_attention_with_statistics(
        q, k, v, log_forget, std::nullopt, tolerance, bound_argument, std::nullopt, sequences, prune_by_mass);
    *trace = AttentionTrace{q.detach(), k.detach(), v.detach(), log_forget.detach(), bound, visited_pairs};
    return end(o, output_gate);
  };
}

double attention_flops(const ModelConfig& model, const AttentionConfig& own, int64_t context_length) {
  // n = context: half of the score matrix is causal.
  return 6 * (QueryKeyValue::multiply_adds(model, own) + ForgetGateWeights::multiply_adds(model, own) +
              OutputEnd::multiply_adds(model) + static_cast<double>(model.width * context_length));
}

int64_t attention_bytes(const ModelConfig& model, const AttentionConfig& own) {
  const int64_t residual = model.compute_bytes() == 2 ? model.width : 0;  // the rounding errors of the values
  return (QueryKeyValue::columns(model, own) + OutputEnd::columns(model) + residual) * model.compute_bytes();
}

}  // namespace

std::string attention_on_hopper(const ModelConfig& model, int64_t context_length) {
  Dtype dtype = Dtype::kFloat32;
  for (const Dtype candidate : {Dtype::kFloat64, Dtype::kBFloat16, Dtype::kFloat16})
    if (dtype_name(candidate) == model.compute_dtype) dtype = candidate;
  const Shape shape{1, context_length, context_length, model.heads, model.heads, model.head_dim(), model.head_dim()};
  const auto call = [&](int capability) {
    return Call{.shape = shape,
                .dtype = dtype,
                .device = at::kCUDA,
                .compute_capability = capability,
                .deterministic = at::globalContext().deterministicAlgorithms()};
  };
  return on_every_gpu(
      [&](int capability) { return implementation_text(attention_implementations(), call(capability)); });
}

namespace {

std::optional<Swap> attention_swap(const ModelConfig&, const AttentionConfig& own) {
  return own.is_softmax() ? std::optional(Swap{}) : std::nullopt;
}

// The four named rows from which the other rows are derived.
std::vector<Architecture> attention_architectures() {
  std::vector<Architecture> rows;
  for (const bool forgets : {true, false})
    for (const bool pro : {true, false}) {
      AttentionConfig own;
      own.forget_gate = forgets ? ForgetGate::kFull : ForgetGate::kNone;
      own.rope = !forgets;
      own.qk_norm = pro ? QkNorm::kShared : QkNorm::kNone;
      own.kv_shift = pro;
      ModelConfig model = llama(own);
      model.output_gate = model.output_norm = pro;
      rows.push_back({std::string(forgets ? "fox" : "transformer") + (pro ? "-pro" : "-llama"), model});
    }
  return rows;
}

}  // namespace

Mixer attention_mixer() {
  Mixer row = row_of<AttentionConfig>();
  row.check = typed<AttentionConfig>(check_attention);
  row.make = typed<AttentionConfig>(make_attention);
  row.packs = true;
  row.flops = typed<AttentionConfig>(attention_flops);
  row.activation_bytes = typed<AttentionConfig>(attention_bytes);
  row.architectures = attention_architectures;
  row.on_hopper = [](const ModelConfig& model, const std::any&, int64_t context_length) {
    return attention_on_hopper(model, context_length);
  };
  row.swap = typed<AttentionConfig>(attention_swap);
  return row;
}

}  // namespace lethe
