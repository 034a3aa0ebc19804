#include "experiments/models/mixers/decay.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

namespace {

// Outputs of W_f and W_z for one token.
int64_t gate_columns(const ModelConfig& model, const DecayConfig& own) {
  return model.heads * own.state_rows(model) + model.width;
}

void check_decay(const ModelConfig& model, const DecayConfig& own) {
  // n of a head's row gates is their number unless gate_range is set, and n = 1 is an empty range.
  own.check(model, own.gate_range ? 1 : 2);
  expect(!own.gate_range || (*own.gate_range >= 2 && std::isfinite(*own.gate_range)), "gate_range",
         "≥ 2 and finite, or absent", std::to_string(own.gate_range.value_or(0)));
}

MixerLayer make_decay(const ModelConfig& model, const DecayConfig& own, const Weights& weights) {
  const StateProjections projections(weights, model, own);
  const int64_t width = model.width, heads = model.heads, rows = own.state_rows(model);
  const auto uniform = [&](int64_t gates) -> Initial {
    const double n = own.gate_range.value_or(static_cast<double>(gates));  // of a head
    return [n, sigmoid = own.sigmoid](Tensor& value, const torch::Generator& generator) {
      const Tensor bias = uniform_gate_bias(value.numel(), n, generator);
      value.copy_(sigmoid ? bias : torch::sigmoid(bias));
    };
  };
  const Tensor key_gate = weights.parameter("key_gate_proj.weight", {heads * rows, width}, normal());
  const Tensor key_bias = weights.parameter("key_gate_proj.bias", {heads * rows}, uniform(rows));
  const Tensor value_gate = weights.parameter("value_gate_proj.weight", {width, width}, normal());
  const Tensor value_bias = weights.parameter("value_gate_proj.bias", {width}, uniform(model.head_dim()));
  const OutputEnd end(weights, model);
  StateRule rule;
  rule.weights = {key_gate, value_gate};
  rule.gates = [=, write_gate = own.write_gate, sigmoid = own.sigmoid](StateInputs& in,
                                                                       const std::vector<Tensor>& products) {
    const auto logits = [&](const Tensor& product, const Tensor& bias) {
      const torch::Dtype wide = accumulation_dtype(product.scalar_type());
      return (product.to(wide) + bias.to(wide)).unflatten(-1, {heads, -1});
    };
    const Tensor of_keys = logits(products[0], key_bias), of_values = logits(products[1], value_bias);
    if (sigmoid) {
      in.log_key_gate = torch::log_sigmoid(of_keys);
      in.log_value_gate = torch::log_sigmoid(of_values);
    } else {
      in.key_gate = of_keys;
      in.value_gate = of_values;
    }
    if (!write_gate) return;
    const auto gated = [&](const Tensor& x, const Tensor& gates) {
      return (x.to(gates.scalar_type()) * (sigmoid ? torch::sigmoid(gates) : gates)).to(x.scalar_type());
    };
    in.erased_key = gated(in.key, of_keys);
    in.erased_value = gated(in.value, of_values);
  };
  return state_layer(weights, projections, rule, end);
}

double decay_flops(const ModelConfig& model, const DecayConfig& own, int64_t) {
  const double gates = static_cast<double>(model.width * gate_columns(model, own));
  return state_flops(model, own, gates, own.write_gate ? 8 : 4);
}

int64_t decay_bytes(const ModelConfig& model, const DecayConfig& own) {
  const int64_t columns = gate_columns(model, own);
  const int64_t erased = own.write_gate ? columns * model.compute_bytes() : 0;
  const int64_t states = own.sigmoid ? 0 : 4 * model.width * own.state_rows(model);  // all of them, in float32
  return state_activation_bytes(model, own, columns) + erased + (own.write_gate ? 2 : 1) * states;
}

Swap decay_swap(const ModelConfig& model, const DecayConfig& own) {
  Swap swap = state_swap(model, own);
  swap.value_gate = own.write_gate ? "" : "value_gate_proj.bias";  // a gate of the writes keeps them small itself
  swap.value_gate_is_bounded = own.sigmoid;
  return swap;
}

std::vector<Architecture> decay_architectures() {
  DecayConfig own;
  own.rope = true;
  return {{own.kName, llama(own)}};
}

}  // namespace

Tensor uniform_gate_bias(int64_t size, double n, torch::Generator generator) {
  const Tensor share = torch::rand({size}, generator, torch::dtype(torch::kFloat64)) * (1 - 2 / n) + 1 / n;
  return share.logit().to(torch::kFloat32);
}

Mixer decay_mixer() {
  Mixer row = state_row<DecayConfig>();
  row.check = typed<DecayConfig>(check_decay);
  row.make = typed<DecayConfig>(make_decay);
  row.packs = true;
  row.flops = typed<DecayConfig>(decay_flops);
  row.activation_bytes = typed<DecayConfig>(decay_bytes);
  row.architectures = decay_architectures;
  row.swap = typed<DecayConfig>(decay_swap);
  row.on_hopper = [with_sigmoid = row.on_hopper](const ModelConfig& model, const std::any& options, int64_t length) {
    const bool is_bounded = std::any_cast<const DecayConfig&>(options).sigmoid;
    return is_bounded ? with_sigmoid(model, options, length)
                      : std::string("portable: a few PyTorch calls each time the length doubles");
  };
  return row;
}

}  // namespace lethe
