#include "experiments/models/mixers/gated_delta.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

void check_gated_delta(const ModelConfig& model, const GatedDeltaConfig& own) {
  own.StateConfig::check(model);
  own.check_of_state();
  check_norm_epsilon(own.norm_epsilon);
  expect(std::isfinite(own.write_bias), "write_bias", "a finite number", std::to_string(own.write_bias));
}

MixerLayer make_gated_delta(const ModelConfig& model, const GatedDeltaConfig& own, const Weights& weights) {
  const StateProjections projections(weights, model, own);
  const Tensor gate = weights.parameter("gate_proj.weight", {model.heads, model.width}, normal());
  const Tensor bias = weights.parameter("gate_proj.bias", {model.heads}, constant(own.write_bias));
  const ForgetGateWeights forget(weights, model, own);
  const OutputEnd end(weights, model);
  StateRule rule;
  rule.weights = {gate, forget.weight};
  rule.gates = [bias, forget](StateInputs& in, const std::vector<Tensor>& products) {
    const torch::Dtype wide = accumulation_dtype(products[0].scalar_type());
    in.beta = torch::sigmoid(products[0].to(wide) + bias.to(wide));  // [B,T,H]
    in.log_key_gate = forget.log_gate(products[1], in.value.size(0), in.value.size(1), wide);
  };
  rule.sum_norm = own.sum_norm;
  rule.norm_epsilon = own.norm_epsilon;
  return state_layer(weights, projections, rule, end);
}

double gated_delta_flops(const ModelConfig& model, const GatedDeltaConfig& own, int64_t) {
  const double gates = static_cast<double>(model.width * model.heads) + ForgetGateWeights::multiply_adds(model, own);
  return state_flops(model, own, gates, 4);
}

int64_t gated_delta_bytes(const ModelConfig& model, const GatedDeltaConfig& own) {
  return state_activation_bytes(model, own);
}

std::vector<Architecture> gated_delta_architectures() {
  GatedDeltaConfig own;
  own.feature_map = FeatureMap::kRelu;
  own.sum_norm = true;
  own.write_bias = 0;  // Yang 2024 has no bias
  return {{own.kName, llama(own)}};
}

}  // namespace

Mixer gated_delta_mixer() {
  Mixer row = state_row<GatedDeltaConfig>();
  row.check = typed<GatedDeltaConfig>(check_gated_delta);
  row.make = typed<GatedDeltaConfig>(make_gated_delta);
  row.packs = true;
  row.flops = typed<GatedDeltaConfig>(gated_delta_flops);
  row.activation_bytes = typed<GatedDeltaConfig>(gated_delta_bytes);
  row.architectures = gated_delta_architectures;
  return row;
}

}  // namespace lethe
