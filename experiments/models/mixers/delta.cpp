#include "experiments/models/mixers/delta.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

void check_delta(const ModelConfig& model, const DeltaConfig& own) {
  own.check(model);
  check_norm_epsilon(own.norm_epsilon);
  expect(std::isfinite(own.write_bias), "write_bias", "a finite number", std::to_string(own.write_bias));
}

MixerLayer make_delta(const ModelConfig& model, const DeltaConfig& own, const Weights& weights) {
  const StateProjections projections(weights, model, own);
  const Tensor gate = weights.parameter("gate_proj.weight", {model.heads, model.width}, normal());
  const Tensor bias = weights.parameter("gate_proj.bias", {model.heads}, constant(own.write_bias));
  const OutputEnd end(weights, model);
  StateRule rule;
  rule.weights = {gate};
  rule.gates = [bias](StateInputs& in, const std::vector<Tensor>& products) {
    const torch::Dtype wide = accumulation_dtype(products[0].scalar_type());
    in.beta = torch::sigmoid(products[0].to(wide) + bias.to(wide));  // [B,T,H]
  };
  rule.attention_norm = own.attention_norm;
  rule.sums_keys = true;
  rule.sum_norm = own.sum_norm;
  rule.norm_epsilon = own.norm_epsilon;
  return state_layer(weights, projections, rule, end);
}

double delta_flops(const ModelConfig& model, const DeltaConfig& own, int64_t) {
  const double gates = static_cast<double>(model.width * model.heads);
  return state_flops(model, own, gates, 3);
}

int64_t delta_bytes(const ModelConfig& model, const DeltaConfig& own) { return state_activation_bytes(model, own); }

std::vector<Architecture> delta_architectures() {
  DeltaConfig own;
  own.rope = true;
  own.feature_map = FeatureMap::kRelu;
  own.sum_norm = true;
  return {{own.kName, llama(own)}};
}

}  // namespace

Mixer delta_mixer() {
  Mixer row = state_row<DeltaConfig>();
  row.check = typed<DeltaConfig>(check_delta);
  row.make = typed<DeltaConfig>(make_delta);
  row.packs = true;
  row.flops = typed<DeltaConfig>(delta_flops);
  row.activation_bytes = typed<DeltaConfig>(delta_bytes);
  row.architectures = delta_architectures;
  return row;
}

}  // namespace lethe
