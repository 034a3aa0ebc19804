#include "experiments/models/forget_gate.hpp"

#include <cmath>

#include "experiments/models/parameters.hpp"

namespace lethe {

using torch::Tensor;

Tensor long_init(const ModelConfig& config) {
  Tensor bias = torch::empty({config.heads});
  for (int64_t head = 0; head < config.heads; ++head) {
    const double share = config.heads == 1 ? 0.0 : static_cast<double>(head) / static_cast<double>(config.heads - 1);
    const double time = config.decay_time_min * std::pow(config.decay_time_max / config.decay_time_min, share);
    bias[head] = -std::log(std::expm1(1 / time));
  }
  return bias;
}

ForgetGateWeights::ForgetGateWeights(torch::nn::Module& root, const std::string& path, const ModelConfig& config,
                                     torch::Device device) {
  switch (config.forget_gate) {
    case ForgetGate::kFull:
      weight = add_parameter(root, path + ".fgate_proj.weight", {config.heads, config.width}, device);
      bias = add_parameter(root, path + ".fgate_proj.bias", {config.heads}, device);
      break;
    case ForgetGate::kBiasOnly: bias = add_parameter(root, path + ".fgate_bias", {config.heads}, device); break;
    case ForgetGate::kFixed: bias = add_buffer(root, path + ".fgate_bias", {config.heads}, device); break;
    default: break;
  }
}

Tensor ForgetGateWeights::log_gate(const Tensor& logits, int64_t batch, int64_t length, torch::Dtype dtype) const {
  if (weight.defined()) return torch::log_sigmoid(logits.to(dtype) + bias.to(dtype));
  return torch::log_sigmoid(bias.to(dtype)).expand({batch, length, bias.size(0)});
}

}  // namespace lethe
