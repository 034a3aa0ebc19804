#include "experiments/models/language_model.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <variant>

#include "experiments/models/cross_entropy.hpp"
#include "experiments/models/fast_weights_layer.hpp"
#include "experiments/models/forget_gate.hpp"
#include "experiments/models/parameters.hpp"

namespace lethe {

using torch::Tensor;

namespace {

constexpr double kInitialDeviation = 0.02;

torch::Dtype dtype_named(const std::string& name) {
  if (name == "float64") return torch::kFloat64;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  return torch::kFloat32;
}

using AnyMixer = std::variant<AttentionLayer, FastWeightsLayer>;

AnyMixer make_mixer(torch::nn::Module& root, const std::string& path, const ModelConfig& config, torch::Device device) {
  if (config.has_state()) return FastWeightsLayer(root, path, config, device);
  return AttentionLayer(root, path, config, device);
}

}  // namespace

struct LanguageModelImpl::Parts {
  // One pre-norm block: x + mixer(norm x), then x + mlp(norm x).
  struct Block {
    Block(torch::nn::Module& root, const std::string& path, const ModelConfig& config, torch::Device device)
        : attention_norm(add_parameter(root, path + ".attn_norm.weight", {config.width}, device)),
          mixer(make_mixer(root, path + ".attn", config, device)),
          mlp_norm(add_parameter(root, path + ".mlp_norm.weight", {config.width}, device)),
          gate_and_up(
              add_parameter(root, path + ".mlp.gate_proj.weight", {2 * config.mlp_width(), config.width}, device)),
          down(add_parameter(root, path + ".mlp.down_proj.weight", {config.width, config.mlp_width()}, device)) {}

    Tensor forward(Tensor x, const Rotation& rotation, torch::Dtype dtype, AttentionTrace* trace) const {
      const Tensor normed = rms_norm(x, attention_norm, kNormEpsilon, dtype);
      x = x + std::visit([&](const auto& layer) { return layer.forward(normed, rotation, trace); }, mixer);
      const Tensor hidden = swiglu(torch::linear(rms_norm(x, mlp_norm, kNormEpsilon, dtype), gate_and_up.to(dtype)));
      return x + torch::linear(hidden, down.to(dtype));
    }

    Tensor attention_norm;
    AnyMixer mixer;
    Tensor mlp_norm, gate_and_up, down;
  };

  Tensor embeddings;  // [V,width]
  std::vector<Block> blocks;
  Tensor norm;    // [width]
  Tensor output;  // [V,width]
  torch::Dtype dtype;
};

LanguageModelImpl::LanguageModelImpl(const ModelConfig& config, torch::Device device)
    : config_(config), parts_(std::make_shared<Parts>()) {
  config.check();
  parts_->dtype = dtype_named(config.compute_dtype);
  parts_->embeddings = add_parameter(*this, "model.embeddings.weight", {config.vocabulary, config.width}, device);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    parts_->blocks.emplace_back(*this, "model.layers." + std::to_string(layer), config, device);
  }
  parts_->norm = add_parameter(*this, "model.norm.weight", {config.width}, device);
  parts_->output = add_parameter(*this, "lm_head.weight", {config.vocabulary, config.width}, device);
  if (device.type() != torch::kMeta) initialize(0);
}

Tensor LanguageModelImpl::hidden(const Tensor& tokens, std::vector<AttentionTrace>* trace) {
  const torch::Dtype dtype = parts_->dtype, residual_dtype = accumulation_dtype(dtype);
  Rotation angles;
  if (config_.rope) {
    angles = rotation(tokens.size(1), config_.query_dim(), config_.rope_base,
                      parts_->embeddings.options().dtype(residual_dtype).requires_grad(false));
  }
  if (trace) trace->assign(parts_->blocks.size(), {});

  Tensor x = torch::embedding(parts_->embeddings.to(residual_dtype), tokens);  // the residual stream stays wide
  for (size_t layer = 0; layer < parts_->blocks.size(); ++layer) {
    x = parts_->blocks[layer].forward(x, angles, dtype, trace ? &(*trace)[layer] : nullptr);
  }
  return rms_norm(x, parts_->norm, kNormEpsilon, dtype);
}

Tensor LanguageModelImpl::forward(const Tensor& tokens, std::vector<AttentionTrace>* trace) {
  return torch::linear(hidden(tokens, trace), parts_->output.to(parts_->dtype));
}

Tensor LanguageModelImpl::losses(const Tensor& tokens, const Tensor& labels) {
  const Tensor rows = hidden(tokens, nullptr).flatten(0, 1);  // [B·T,width]
  return cross_entropy(rows, parts_->output.to(parts_->dtype), labels.flatten()).view(labels.sizes());
}

torch::Device LanguageModelImpl::device() const { return parts_->embeddings.device(); }

void LanguageModelImpl::initialize(uint64_t seed) {
  const torch::NoGradGuard no_gradient;
  const torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto set = [&](const std::string& name, Tensor& value) {
    if (name.ends_with("norm.weight")) {
      value.fill_(1);
    } else if (name.ends_with("fgate_bias")) {
      value.copy_(long_init(config_));
    } else if (name.ends_with(".gate_proj.bias")) {
      value.fill_(config_.write_bias);
    } else if (name.ends_with("key_gate_proj.bias") || name.ends_with("value_gate_proj.bias")) {
      value.copy_(uniform_gate_bias(value.numel(), gate_range(config_, value.numel() / config_.heads), generator));
    } else if (name.ends_with("bias")) {
      value.zero_();
    } else if (name.ends_with("feature.directions")) {
      value.copy_(torch::empty(value.sizes()).normal_(0, 1, generator));
    } else {
      value.copy_(torch::empty(value.sizes()).normal_(0, kInitialDeviation, generator));
    }
  };
  for (auto& parameter : named_parameters()) set(parameter.key(), parameter.value());
  for (auto& buffer : named_buffers()) set(buffer.key(), buffer.value());
}

std::vector<Tensor> LanguageModelImpl::decayed_parameters() {
  std::vector<Tensor> matrices;
  for (const Tensor& parameter : parameters()) {
    if (parameter.dim() == 2) matrices.push_back(parameter);
  }
  return matrices;
}

std::vector<Tensor> LanguageModelImpl::undecayed_parameters() {
  std::vector<Tensor> vectors;
  for (const Tensor& parameter : parameters()) {
    if (parameter.dim() != 2) vectors.push_back(parameter);
  }
  return vectors;
}

ParameterCounts count_parameters(const ModelConfig& config) {
  LanguageModel model(config, torch::kMeta);
  ParameterCounts counts;
  for (const auto& parameter : model->named_parameters()) {
    counts.total += parameter.value().numel();
    if (parameter.key() != "model.embeddings.weight") counts.non_embedding += parameter.value().numel();
  }
  return counts;
}

}  // namespace lethe
