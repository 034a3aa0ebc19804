#include "experiments/models/mixers/gated.hpp"

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

void check_gated(const ModelConfig& model, const GatedConfig& own) {
  own.check(model);
  check_norm_epsilon(own.norm_epsilon);
}

MixerLayer make_gated(const ModelConfig& model, const GatedConfig& own, const Weights& weights) {
  const StateProjections projections(weights, model, own);
  const Tensor gate = weights.parameter("gate_proj.weight", {model.heads, model.width}, normal());
  const OutputEnd end(weights, model);
  StateRule rule;
  rule.weights = {gate};
  rule.gates = [](StateInputs& in, const std::vector<Tensor>& products) {
    const Tensor logits = products[0].to(accumulation_dtype(products[0].scalar_type()));  // [B,T,H]
    in.log_key_gate = torch::log_sigmoid(logits);
    const Tensor written = in.key.to(logits.scalar_type()) * torch::sigmoid(-logits).unsqueeze(-1);
    in.key = written.to(in.key.scalar_type());
  };
  rule.attention_norm = own.attention_norm;
  rule.norm_epsilon = own.norm_epsilon;
  return state_layer(weights, projections, rule, end);
}

double gated_flops(const ModelConfig& model, const GatedConfig& own, int64_t) {
  const double gates = static_cast<double>(model.width * model.heads);
  return state_flops(model, own, gates, 3);
}

int64_t gated_bytes(const ModelConfig& model, const GatedConfig& own) { return state_activation_bytes(model, own); }

std::vector<Architecture> gated_architectures() {
  GatedConfig own;
  own.rope = true;
  return {{own.kName, llama(own)}};
}

}  // namespace

Mixer gated_mixer() {
  Mixer row = state_row<GatedConfig>();
  row.check = typed<GatedConfig>(check_gated);
  row.make = typed<GatedConfig>(make_gated);
  row.packs = true;
  row.flops = typed<GatedConfig>(gated_flops);
  row.activation_bytes = typed<GatedConfig>(gated_bytes);
  row.architectures = gated_architectures;
  return row;
}

}  // namespace lethe
