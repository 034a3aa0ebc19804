#include "experiments/models/mixers/parts/output_end.hpp"

#include <optional>

#include "experiments/models/layers.hpp"
#include "optimized/torch/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

std::optional<Tensor> optional(const Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

}  // namespace

OutputEnd::OutputEnd(const Weights& weights, const ModelConfig& model)
    : heads(model.heads),
      gate(model.output_gate ? weights.parameter("ogate_proj.weight", {model.width, model.width}, normal()) : Tensor()),
      norm(model.output_norm ? weights.parameter("output_norm.weight", {model.width}, constant(1)) : Tensor()),
      output_(weights.product({weights.parameter("o_proj.weight", {model.width, model.width}, normal())})) {}

Tensor OutputEnd::operator()(const Tensor& o, const Tensor& gate_logits) const {
  if (!norm.defined() && !gate.defined()) return output_(o.flatten(-2));
  return output_(gated_output(o, optional(gate_logits), widened_norm(o.scalar_type()), kNormEpsilon));
}

Tensor OutputEnd::operator()(GatedAttention attention, const Tensor& gate_logits) const {
  if (gate.defined()) attention.output_gate = gate_logits;
  attention.output_norm = widened_norm(attention.products.query.scalar_type());
  attention.output_epsilon = kNormEpsilon;
  return output_(gated_attention(attention));
}

std::optional<Tensor> OutputEnd::widened_norm(torch::Dtype dtype) const {
  return norm.defined() ? std::optional(norm.to(accumulation_dtype(dtype))) : std::nullopt;
}

double OutputEnd::multiply_adds(const ModelConfig& model) {
  return static_cast<double>(model.width * model.width * (1 + model.output_gate));
}

int64_t OutputEnd::columns(const ModelConfig& model) {
  return model.width * (1 + model.output_norm + 2 * model.output_gate);
}

}  // namespace lethe
