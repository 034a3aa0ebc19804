#include "experiments/models/language_model.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>

#include "experiments/models/cross_entropy.hpp"
#include "experiments/models/footprint.hpp"
#include "experiments/models/layers.hpp"
#include "experiments/models/mixers/parts/rotations.hpp"
#include "experiments/models/parameters.hpp"
#include "optimized/torch/layers.hpp"

namespace lethe {

using torch::Tensor;

torch::Dtype dtype_named(const std::string& name) {
  if (name == "float64") return torch::kFloat64;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  return torch::kFloat32;
}

struct LanguageModelImpl::Parts {
  // One pre-norm block: r + mixer(norm r), then r + mlp(norm r) where there is an MLP, for a residual stream r. Each addition is part of the norm
  // that follows it.
  struct Block {
    Block(const Weights& weights, const ModelConfig& config, const MixerConfig& of_layer)
        : attention_norm(weights.parameter("attn_norm.weight", {config.width}, constant(1))),
          mixer(of_layer.row().make(config, of_layer.options(), weights.below("attn"))),
          mlp(config.mlp_width() > 0 ? std::optional<Mlp>(std::in_place, weights, config) : std::nullopt) {}

    struct Mlp {
      Mlp(const Weights& weights, const ModelConfig& config)
          : norm(weights.parameter("mlp_norm.weight", {config.width}, constant(1))),
            gate_and_up(weights.product(
                {weights.parameter("mlp.gate_proj.weight", {2 * config.mlp_width(), config.width}, normal())})),
            down(weights.product(
                {weights.parameter("mlp.down_proj.weight", {config.width, config.mlp_width()}, normal())})) {}

      Tensor norm;
      Product gate_and_up, down;
    };

    Tensor attention_norm;
    MixerLayer mixer;
    std::optional<Mlp> mlp;
  };

  Weights weights;
  Tensor embeddings;  // [V,width]
  std::vector<Block> blocks;
  Tensor norm;                  // [width]
  Tensor output;                // [V,width]
  std::optional<Product> head;  // of output
  torch::Dtype dtype;
  Rotations rotations;
};

LanguageModelImpl::LanguageModelImpl(const ModelConfig& config, torch::Device device, std::optional<uint64_t> seed)
    : config_(config) {
  config.check();
  if (device.type() != torch::kMeta)
    expect_memory("the model's weights", count_parameters(config).total * static_cast<int64_t>(sizeof(float)), device);
  const Weights weights(*this, device);
  parts_ = std::make_shared<Parts>(Parts{weights, {}, {}, {}, {}, {}, dtype_named(config.compute_dtype), {}});
  parts_->embeddings = weights.parameter("model.embeddings.weight", {config.vocabulary, config.width}, normal());
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    parts_->blocks.emplace_back(weights.below("model.layers." + std::to_string(layer)), config, config.mixer.of(layer));
  }
  parts_->norm = weights.parameter("model.norm.weight", {config.width}, constant(1));
  parts_->output = weights.parameter("lm_head.weight", {config.vocabulary, config.width}, normal());
  parts_->head = weights.product({parts_->output});
  if (config.initialization == Initialization::kScaled) {
    const double residuals = 2.0 * static_cast<double>(config.layers);
    weights.replace_initial([&](const std::string& path, const Tensor& value) -> Initial {
      if (path.ends_with("mlp.down_proj.weight")) return normal(0.02 / std::sqrt(residuals));
      if (path.find(".attn.") == std::string::npos || value.dim() != 2) return nullptr;
      return uniform(std::exp2(-2.5) * std::sqrt(6.0 / static_cast<double>(value.size(0) + value.size(1))));
    });
  }
  if (device.type() != torch::kMeta && seed) initialize(*seed);
}

Tensor LanguageModelImpl::hidden(const Tensor& given_tokens, const ReadTrace& read, const Tensor& cu_seqlens,
                                 std::vector<Past>* past) {
  std::optional<Packed> packed;
  if (cu_seqlens.defined()) packed.emplace(cu_seqlens, given_tokens.numel(), given_tokens.size(1));
  const Tensor tokens = packed ? given_tokens.view({1, -1}) : given_tokens;
  const torch::Dtype dtype = parts_->dtype, wide = accumulation_dtype(dtype);
  // {residual, branch} → {residual, branch}: a branch is added by the norm after it.
  const auto block = [=, this](size_t layer, std::any* traced, const std::vector<Tensor>& before) {
    const Parts::Block& parts = parts_->blocks[layer];
    parts_->rotations.packed = packed;  // a recomputed block runs after the forward pass
    const auto branch = before[1].defined() ? std::optional(before[1]) : std::nullopt;
    auto [normed, residual] = add_rms_norm(before[0], branch, parts.attention_norm.to(wide), kNormEpsilon, dtype);
    const Tensor mixed = parts.mixer(normed, parts_->rotations, traced, past ? &(*past)[layer] : nullptr);
    if (!parts.mlp) return std::vector<Tensor>{residual, mixed};
    const Parts::Block::Mlp& mlp = *parts.mlp;
    std::tie(normed, residual) = add_rms_norm(residual, mixed, mlp.norm.to(wide), kNormEpsilon, dtype);
    const Tensor gate_and_up = mlp.gate_and_up(normed);
    const bool keeps_all = recompute_ == Recompute::kNone;
    return std::vector<Tensor>{residual, keeps_all ? mlp.down(swiglu(gate_and_up)) : mlp.down.of_swiglu(gate_and_up)};
  };
  const torch::Dtype residual = config_.residual_in_compute_dtype ? dtype : wide;
  std::vector<Tensor> stream{torch::embedding(parts_->embeddings.to(wide), tokens).to(residual), Tensor()};
  for (size_t layer = 0; layer < parts_->blocks.size(); ++layer) {
    if (recompute_ == Recompute::kBlock && !read && torch::GradMode::is_enabled()) {
      stream = recomputed([=](const std::vector<Tensor>& before) { return block(layer, nullptr, before); }, stream);
      continue;
    }
    std::any trace;
    stream = block(layer, read ? &trace : nullptr, stream);
    if (read) read(layer, std::move(trace));
  }
  return std::get<0>(add_rms_norm(stream[0], stream[1], parts_->norm.to(wide), kNormEpsilon, dtype));
}

Tensor LanguageModelImpl::forward(const Tensor& tokens, std::vector<std::any>* trace) {
  if (!trace) return (*parts_->head)(hidden(tokens));
  trace->clear();
  return (*parts_->head)(hidden(tokens, [trace](size_t, std::any of_layer) { trace->push_back(std::move(of_layer)); }));
}

Tensor LanguageModelImpl::continued(const Tensor& tokens, std::vector<Past>& past) {
  past.resize(parts_->blocks.size());
  return (*parts_->head)(hidden(tokens, {}, {}, &past));
}

bool LanguageModelImpl::continues() const {
  return std::ranges::all_of(parts_->blocks, [](const Parts::Block& block) { return block.mixer.continues(); });
}

void LanguageModelImpl::traces(const Tensor& tokens, const ReadTrace& read) { hidden(tokens, read); }

Tensor LanguageModelImpl::losses(const Tensor& tokens, const Tensor& labels, const Tensor& cu_seqlens) {
  const Tensor rows = hidden(tokens, {}, cu_seqlens).flatten(0, 1);  // [B·T,width]
  if (torch::GradMode::is_enabled())
    return cross_entropy(rows, parts_->output.to(parts_->dtype), labels.flatten()).view(labels.sizes());
  const Tensor weight = parts_->head->weight(parts_->dtype);
  const Tensor losses = linear_cross_entropy(rows, weight, labels.flatten(), config_.vocabulary).losses;
  return losses.view(labels.sizes());
}

LanguageModelImpl::Predictions LanguageModelImpl::predictions(const Tensor& tokens, const Tensor& labels) {
  const Tensor flat = labels.flatten(), scored = flat.ge(0).nonzero().squeeze(1);
  const Tensor rows = hidden(tokens).flatten(0, 1).index_select(0, scored), of_rows = flat.index_select(0, scored);
  if (torch::GradMode::is_enabled()) {
    const Tensor losses = cross_entropy(rows, parts_->output.to(parts_->dtype), of_rows);
    return {losses.new_zeros(flat.sizes()).index_copy(0, scored, losses).view(labels.sizes()), {}};
  }
  const auto head = linear_cross_entropy(rows, parts_->head->weight(parts_->dtype), of_rows, config_.vocabulary);
  return {head.losses.new_zeros(flat.sizes()).index_copy_(0, scored, head.losses).view(labels.sizes()),
          head.correct.new_ones(flat.sizes()).index_copy_(0, scored, head.correct).view(labels.sizes())};
}

Tensor LanguageModelImpl::accumulate_gradients(const Tensor& tokens, const Tensor& labels, double scale,
                                               const Tensor& cu_seqlens) {
  if (!flat_.gradient.defined()) throw std::logic_error("model: expected flat gradients, found none");
  const Tensor rows = hidden(tokens, {}, cu_seqlens).flatten(0, 1);
  Tensor flat = parts_->head->gradient();
  // The flat gradient of a float64 model is float32 like its parameters.
  const bool is_wide = parts_->dtype == torch::kFloat64;
  Tensor gradient = is_wide ? torch::zeros_like(flat, torch::kFloat64) : flat;
  const auto head = linear_cross_entropy_with_gradients(rows.detach(), parts_->head->weight(parts_->dtype),
                                                        labels.flatten(), config_.vocabulary, scale, gradient);
  if (is_wide) flat.add_(gradient);
  parts_->head->complete_gradient();
  rows.backward(head.grad_hidden);
  return head.losses.view(labels.sizes());
}

FlatParameters& LanguageModelImpl::flatten(bool with_gradients, int64_t parts) {
  flat_ = parts_->weights.flatten(parts_->dtype, with_gradients, parts);
  return flat_;
}

torch::Device LanguageModelImpl::device() const { return parts_->embeddings.device(); }

void LanguageModelImpl::initialize(uint64_t seed) {
  parts_->weights.initialize(seed);
  if (flat_.master.defined()) flat_.refresh();
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
