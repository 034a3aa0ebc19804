#include "experiments/models/language_model.hpp"

#include "experiments/models/cross_entropy.hpp"
#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/rotations.hpp"
#include "experiments/models/parameters.hpp"

namespace lethe {

using torch::Tensor;

namespace {

torch::Dtype dtype_named(const std::string& name) {
  if (name == "float64") return torch::kFloat64;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  return torch::kFloat32;
}

}  // namespace

struct LanguageModelImpl::Parts {
  // One pre-norm block: x + mixer(norm x), then x + mlp(norm x).
  struct Block {
    Block(const Weights& weights, const ModelConfig& config, const MixerConfig& of_layer)
        : attention_norm(weights.parameter("attn_norm.weight", {config.width}, constant(1))),
          mixer(of_layer.row().make(config, of_layer.options(), weights.below("attn"))),
          mlp_norm(weights.parameter("mlp_norm.weight", {config.width}, constant(1))),
          gate_and_up(weights.parameter("mlp.gate_proj.weight", {2 * config.mlp_width(), config.width}, normal())),
          down(weights.parameter("mlp.down_proj.weight", {config.width, config.mlp_width()}, normal())) {}

    Tensor forward(Tensor x, Rotations& rotations, torch::Dtype dtype, std::any* trace) const {
      x = x + mixer(rms_norm(x, attention_norm, kNormEpsilon, dtype), rotations, trace);
      const Tensor hidden = swiglu(torch::linear(rms_norm(x, mlp_norm, kNormEpsilon, dtype), gate_and_up.to(dtype)));
      return x + torch::linear(hidden, down.to(dtype));
    }

    Tensor attention_norm;
    MixerLayer mixer;
    Tensor mlp_norm, gate_and_up, down;
  };

  Weights weights;
  Tensor embeddings;  // [V,width]
  std::vector<Block> blocks;
  Tensor norm;    // [width]
  Tensor output;  // [V,width]
  torch::Dtype dtype;
};

LanguageModelImpl::LanguageModelImpl(const ModelConfig& config, torch::Device device) : config_(config) {
  config.check();
  const Weights weights(*this, device);
  parts_ = std::make_shared<Parts>(Parts{weights, {}, {}, {}, {}, dtype_named(config.compute_dtype)});
  parts_->embeddings = weights.parameter("model.embeddings.weight", {config.vocabulary, config.width}, normal());
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    parts_->blocks.emplace_back(weights.below("model.layers." + std::to_string(layer)), config, config.mixer.of(layer));
  }
  parts_->norm = weights.parameter("model.norm.weight", {config.width}, constant(1));
  parts_->output = weights.parameter("lm_head.weight", {config.vocabulary, config.width}, normal());
  if (device.type() != torch::kMeta) initialize(0);
}

Tensor LanguageModelImpl::hidden(const Tensor& tokens, std::vector<std::any>* trace) {
  const torch::Dtype dtype = parts_->dtype;
  Rotations rotations;
  if (trace) trace->assign(parts_->blocks.size(), {});

  // The residual stream stays in float32 or wider.
  Tensor x = torch::embedding(parts_->embeddings.to(accumulation_dtype(dtype)), tokens);
  for (size_t layer = 0; layer < parts_->blocks.size(); ++layer) {
    x = parts_->blocks[layer].forward(x, rotations, dtype, trace ? &(*trace)[layer] : nullptr);
  }
  return rms_norm(x, parts_->norm, kNormEpsilon, dtype);
}

Tensor LanguageModelImpl::forward(const Tensor& tokens, std::vector<std::any>* trace) {
  return torch::linear(hidden(tokens, trace), parts_->output.to(parts_->dtype));
}

Tensor LanguageModelImpl::losses(const Tensor& tokens, const Tensor& labels) {
  const Tensor rows = hidden(tokens, nullptr).flatten(0, 1);  // [B·T,width]
  return cross_entropy(rows, parts_->output.to(parts_->dtype), labels.flatten()).view(labels.sizes());
}

torch::Device LanguageModelImpl::device() const { return parts_->embeddings.device(); }

void LanguageModelImpl::initialize(uint64_t seed) { parts_->weights.initialize(seed); }

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
