#include "experiments/models/mixers/parts/forget_gate.hpp"

#include <cmath>

#include "experiments/models/layers.hpp"

namespace lethe {

using torch::Tensor;

void ForgetGateConfig::check() const {
  expect(std::isfinite(forget_bias), "forget_bias", "a finite number", std::to_string(forget_bias));
  expect(decay_time_min > 0 && decay_time_max >= decay_time_min && std::isfinite(decay_time_max), "decay_time_min",
         "0 < decay_time_min ≤ decay_time_max < ∞",
         std::to_string(decay_time_min) + " and " + std::to_string(decay_time_max));
}

void ForgetGateConfig::check_of_state() const {
  check();
  expect(forget_gate != ForgetGate::kNone, "forget_gate", "full, bias_only or fixed with a state", "none");
}

Tensor long_init(const ForgetGateConfig& own, int64_t heads) {
  Tensor bias = torch::empty({heads});
  for (int64_t head = 0; head < heads; ++head) {
    const double share = heads == 1 ? 0.0 : static_cast<double>(head) / static_cast<double>(heads - 1);
    const double time = own.decay_time_min * std::pow(own.decay_time_max / own.decay_time_min, share);
    bias[head] = -std::log(std::expm1(1 / time));
  }
  return bias;
}

ForgetGateWeights::ForgetGateWeights(const Weights& weights, const ModelConfig& model, const ForgetGateConfig& own) {
  const Initial decay_times = [own, heads = model.heads](Tensor& value, const torch::Generator&) {
    value.copy_(long_init(own, heads));
  };
  switch (own.forget_gate) {
    case ForgetGate::kFull:
      weight = weights.parameter("fgate_proj.weight", {model.heads, model.width}, normal());
      bias = weights.parameter("fgate_proj.bias", {model.heads}, constant(own.forget_bias));
      break;
    case ForgetGate::kBiasOnly: bias = weights.parameter("fgate_bias", {model.heads}, decay_times); break;
    case ForgetGate::kFixed: bias = weights.buffer("fgate_bias", {model.heads}, decay_times); break;
    default: break;
  }
}

Tensor ForgetGateWeights::log_gate(const Tensor& logits, int64_t batch, int64_t length, torch::Dtype dtype) const {
  if (weight.defined()) return torch::log_sigmoid(logits.to(dtype) + bias.to(dtype));
  return torch::log_sigmoid(bias.to(dtype)).expand({batch, length, bias.size(0)});
}

Tensor ForgetGateWeights::constant_gate(const Tensor& x, int64_t heads) const {
  const torch::Dtype dtype = accumulation_dtype(x.scalar_type());
  if (bias.defined()) return log_gate({}, x.size(0), x.size(1), dtype);
  return torch::zeros({1}, x.options().dtype(dtype)).expand({x.size(0), x.size(1), heads});
}

double ForgetGateWeights::multiply_adds(const ModelConfig& model, const ForgetGateConfig& own) {
  return own.forget_gate == ForgetGate::kFull ? static_cast<double>(model.width * model.heads) : 0;
}

}  // namespace lethe
