#include "experiments/models/mixers/gated_linear.hpp"

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

void check_gated_linear(const ModelConfig& model, const GatedLinearConfig& own) {
  own.StateConfig::check(model);
  own.check_of_state();
  check_norm_epsilon(own.norm_epsilon);
}

MixerLayer make_gated_linear(const ModelConfig& model, const GatedLinearConfig& own, const Weights& weights) {
  const StateProjections projections(weights, model, own);
  const ForgetGateWeights forget(weights, model, own);
  const OutputEnd end(weights, model);
  StateRule rule;
  rule.weights = {forget.weight};
  rule.gates = [forget](StateInputs& in, const std::vector<Tensor>& products) {
    const torch::Dtype wide = accumulation_dtype(in.value.scalar_type());
    in.log_key_gate = forget.log_gate(products[0], in.value.size(0), in.value.size(1), wide);
  };
  rule.attention_norm = own.attention_norm;
  rule.norm_epsilon = own.norm_epsilon;
  return state_layer(weights, projections, rule, end);
}

double gated_linear_flops(const ModelConfig& model, const GatedLinearConfig& own, int64_t) {
  const double gates = ForgetGateWeights::multiply_adds(model, own);
  return state_flops(model, own, gates, 3);
}

int64_t gated_linear_bytes(const ModelConfig& model, const GatedLinearConfig& own) {
  return state_activation_bytes(model, own);
}

std::vector<Architecture> gated_linear_architectures() {
  GatedLinearConfig own;
  own.feature_map = FeatureMap::kEluPlusOne;
  own.attention_norm = true;
  return {{own.kName, llama(own)}};
}

}  // namespace

Mixer gated_linear_mixer() {
  Mixer row = state_row<GatedLinearConfig>();
  row.check = typed<GatedLinearConfig>(check_gated_linear);
  row.make = typed<GatedLinearConfig>(make_gated_linear);
  row.packs = true;
  row.flops = typed<GatedLinearConfig>(gated_linear_flops);
  row.activation_bytes = typed<GatedLinearConfig>(gated_linear_bytes);
  row.architectures = gated_linear_architectures;
  return row;
}

}  // namespace lethe
