#include "experiments/models/mixers/additive.hpp"

namespace lethe {

using torch::Tensor;

namespace {

void check_additive(const ModelConfig& model, const AdditiveConfig& own) {
  own.check(model);
  check_norm_epsilon(own.norm_epsilon);
}

MixerLayer make_additive(const ModelConfig& model, const AdditiveConfig& own, const Weights& weights) {
  const StateProjections projections(weights, model, own);
  const OutputEnd end(weights, model);
  StateRule rule;
  rule.attention_norm = own.attention_norm;
  rule.norm_epsilon = own.norm_epsilon;
  return state_layer(weights, projections, rule, end);
}

double additive_flops(const ModelConfig& model, const AdditiveConfig& own, int64_t) {
  const double gates = 0;
  return state_flops(model, own, gates, 2);
}

int64_t additive_bytes(const ModelConfig& model, const AdditiveConfig& own) {
  return state_activation_bytes(model, own);
}

// Sums without a norm or a ReLU map begin small.
Swap additive_swap(const ModelConfig& model, const AdditiveConfig& own) {
  Swap swap = state_swap(model, own);
  if (swap.product && !own.attention_norm) swap.value_scale = 1.0 / 512;
  return swap;
}

std::vector<Architecture> additive_architectures() {
  AdditiveConfig own;
  own.rope = true;
  return {{own.kName, llama(own)}};
}

}  // namespace

Mixer additive_mixer() {
  Mixer row = state_row<AdditiveConfig>();
  row.check = typed<AdditiveConfig>(check_additive);
  row.make = typed<AdditiveConfig>(make_additive);
  row.packs = true;
  row.flops = typed<AdditiveConfig>(additive_flops);
  row.activation_bytes = typed<AdditiveConfig>(additive_bytes);
  row.architectures = additive_architectures;
  row.swap = typed<AdditiveConfig>(additive_swap);
  return row;
}

}  // namespace lethe
