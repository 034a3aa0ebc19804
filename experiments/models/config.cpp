#include "experiments/models/config.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "experiments/models/json_members.hpp"

namespace lethe {
namespace {

// Every member with its JSON key; Config is ModelConfig or const ModelConfig.
template <class Config, class Visitor>
void visit_model(Config& config, Visitor&& visit) {
  visit("vocabulary", config.vocabulary);
  visit("layers", config.layers);
  visit("width", config.width);
  visit("heads", config.heads);
  visit("mlp_ratio", config.mlp_ratio);
  visit("mlp_multiple", config.mlp_multiple);
  visit("rope", config.rope);
  visit("rope_base", config.rope_base);
  visit("forget_gate", config.forget_gate);
  visit("decay_time_min", config.decay_time_min);
  visit("decay_time_max", config.decay_time_max);
  visit("qk_norm", config.qk_norm);
  visit("output_gate", config.output_gate);
  visit("output_norm", config.output_norm);
  visit("kv_shift", config.kv_shift);
  visit("log_pruning_tolerance", config.log_pruning_tolerance);
  visit("compute_dtype", config.compute_dtype);
  visit("mixer", config.mixer);
  visit("window", config.window);
  visit("state_size", config.state_size);
  visit("feature_map", config.feature_map);
  visit("dpfp_nu", config.dpfp_nu);
  visit("attention_norm", config.attention_norm);
  visit("sum_norm", config.sum_norm);
  visit("norm_epsilon", config.norm_epsilon);
  visit("gate_range", config.gate_range);
  visit("write_bias", config.write_bias);
}

// Features that a head of a state can't have.
void check_features(const ModelConfig& config) {
  const auto found = std::to_string(config.state_size);
  expect(config.feature_map != FeatureMap::kDpfp || (config.dpfp_nu >= 1 && config.dpfp_nu <= 2 * config.head_dim()),
         "dpfp_nu", "1 … 2·head_dim = " + std::to_string(2 * config.head_dim()), std::to_string(config.dpfp_nu));
  // n of a head's row gates is their number unless gate_range says otherwise, and n = 1 is no range.
  const int64_t least = config.mixer == Mixer::kDecay && !config.gate_range ? 2 : 1;
  expect(!config.reads_state_size() || config.state_size >= least, "state_size", "≥ " + std::to_string(least), found);
  expect(config.reads_state_size() || config.state_rows() >= least, "heads",
         "fewer than width " + std::to_string(config.width), std::to_string(config.heads));
  expect(!config.rope || config.query_dim() % 2 == 0, "state_size", "an even number where queries are rotated", found);
  expect(config.feature_map != FeatureMap::kRandomFourier || config.state_size % 2 == 0, "state_size",
         "an even number with the feature map random_fourier, a sine and a cosine a direction", found);
}

// Parts of a layer that a mixer has no place for.
void check_mixer(const ModelConfig& config) {
  if (config.mixer == Mixer::kAttention) return;
  const auto without = [](bool absent, const char* name, const char* value) {
    expect(absent, name, std::string(value) + " with a mixer other than attention", "another value");
  };
  const bool gated = config.forget_gate != ForgetGate::kNone;
  expect(!gated || config.forgets_state(), "forget_gate",
         "none with a mixer other than attention, gated_linear and gated_delta", "another value");
  expect(gated || !config.forgets_state(), "forget_gate",
         "full, bias_only or fixed with the mixer gated_linear or gated_delta", "none");
  without(!config.log_pruning_tolerance, "log_pruning_tolerance", "null");
  expect(config.mixer != Mixer::kLocal || config.window > 0, "window", "> 0", std::to_string(config.window));
  if (!config.has_state()) return;
  without(config.qk_norm == QkNorm::kNone, "qk_norm", "none");
  without(!config.kv_shift, "kv_shift", "false");
  check_features(config);
  expect(!config.attention_norm || !(config.mixer == Mixer::kDecay || config.mixer == Mixer::kGatedDelta),
         "attention_norm", "false with the mixer decay or gated_delta", "true");
  expect(!config.sum_norm || config.corrects(), "sum_norm", "false with a mixer other than delta or gated_delta",
         "true");
  expect(config.norm_epsilon >= 0 && std::isfinite(config.norm_epsilon), "norm_epsilon", "≥ 0 and finite",
         std::to_string(config.norm_epsilon));
  expect(!config.gate_range || (*config.gate_range >= 2 && std::isfinite(*config.gate_range)), "gate_range",
         "≥ 2 and finite, or absent", std::to_string(config.gate_range.value_or(0)));
  expect(std::isfinite(config.write_bias), "write_bias", "a finite number", std::to_string(config.write_bias));
}

}  // namespace

template <>
struct EnumNames<ForgetGate> {
  static inline const std::vector<std::pair<ForgetGate, std::string>> names{{ForgetGate::kNone, "none"},
                                                                            {ForgetGate::kFull, "full"},
                                                                            {ForgetGate::kBiasOnly, "bias_only"},
                                                                            {ForgetGate::kFixed, "fixed"}};
};

template <>
struct EnumNames<Mixer> {
  static inline const std::vector<std::pair<Mixer, std::string>> names{{Mixer::kAttention, "attention"},
                                                                       {Mixer::kLocal, "local"},
                                                                       {Mixer::kAdditive, "additive"},
                                                                       {Mixer::kGated, "gated"},
                                                                       {Mixer::kDelta, "delta"},
                                                                       {Mixer::kDecay, "decay"},
                                                                       {Mixer::kGatedLinear, "gated_linear"},
                                                                       {Mixer::kGatedDelta, "gated_delta"}};
};

template <>
struct EnumNames<FeatureMap> {
  static inline const std::vector<std::pair<FeatureMap, std::string>> names{
      {FeatureMap::kLinear, "linear"},
      {FeatureMap::kRelu, "relu"},
      {FeatureMap::kEluPlusOne, "elu_plus_one"},
      {FeatureMap::kDpfp, "dpfp"},
      {FeatureMap::kPositiveRandom, "positive_random"},
      {FeatureMap::kRandomFourier, "random_fourier"}};
};

template <>
struct EnumNames<QkNorm> {
  static inline const std::vector<std::pair<QkNorm, std::string>> names{
      {QkNorm::kNone, "none"}, {QkNorm::kShared, "shared"}, {QkNorm::kPerHead, "per_head"}};
};

int64_t ModelConfig::mlp_width() const {
  const double ratio = mlp_ratio.value_or(output_gate ? 3.5 : 4.0);
  const auto raw = static_cast<int64_t>(static_cast<double>(width) * ratio * 2 / 3);
  return (raw + mlp_multiple - 1) / mlp_multiple * mlp_multiple;
}

int64_t ModelConfig::state_rows() const {
  if (feature_map == FeatureMap::kEluPlusOne) return head_dim();
  return feature_map == FeatureMap::kDpfp ? 2 * dpfp_nu * head_dim() : state_size;
}

void ModelConfig::check() const {
  const auto positive = [](const char* name, int64_t value) { expect(value > 0, name, "> 0", std::to_string(value)); };
  positive("vocabulary", vocabulary);
  positive("layers", layers);
  positive("width", width);
  positive("heads", heads);
  positive("mlp_multiple", mlp_multiple);
  expect(width % heads == 0, "heads", "a divisor of width " + std::to_string(width), std::to_string(heads));
  expect(!mlp_ratio || *mlp_ratio > 0, "mlp_ratio", "> 0", std::to_string(mlp_ratio.value_or(0)));
  expect(!rope || head_dim() % 2 == 0, "rope", "an even head dim", std::to_string(head_dim()));
  expect(rope_base > 0 && std::isfinite(rope_base), "rope_base", "> 0 and finite", std::to_string(rope_base));
  expect(decay_time_min > 0 && decay_time_max >= decay_time_min && std::isfinite(decay_time_max), "decay_time_min",
         "0 < decay_time_min ≤ decay_time_max < ∞",
         std::to_string(decay_time_min) + " and " + std::to_string(decay_time_max));
  expect(!log_pruning_tolerance || (*log_pruning_tolerance <= 0 && std::isfinite(*log_pruning_tolerance)),
         "log_pruning_tolerance", "≤ 0 and finite, or absent", std::to_string(log_pruning_tolerance.value_or(0)));
  expect(compute_dtype == "float32" || compute_dtype == "bfloat16" || compute_dtype == "float16" ||
             compute_dtype == "float64",
         "compute_dtype", "float32, bfloat16, float16 or float64", compute_dtype);
  check_mixer(*this);
}

ModelConfig named_architecture(const std::string& name) {
  for (const auto& [mixer, word] : EnumNames<Mixer>::names) {
    if (mixer == Mixer::kAttention || name != word) continue;
    const bool linear = mixer == Mixer::kGatedLinear, forgets = linear || mixer == Mixer::kGatedDelta;
    ModelConfig config = named_architecture(forgets ? "fox-llama" : "transformer-llama");
    config.mixer = mixer;
    config.feature_map = linear ? FeatureMap::kEluPlusOne : config.corrects() ? FeatureMap::kRelu : FeatureMap::kLinear;
    config.attention_norm = linear;
    config.sum_norm = config.corrects();
    if (mixer == Mixer::kGatedDelta) config.write_bias = 0;  // Yang 2024 has none
    return config;
  }
  const bool pro = name.ends_with("-pro");
  const bool forgets = name.starts_with("fox-");
  expect(name == "fox-pro" || name == "fox-llama" || name == "transformer-pro" || name == "transformer-llama",
         "architecture",
         "fox-pro, fox-llama, transformer-pro, transformer-llama, local, additive, gated, delta, decay, gated_linear "
         "or gated_delta",
         name);
  ModelConfig config;
  config.forget_gate = forgets ? ForgetGate::kFull : ForgetGate::kNone;
  config.rope = !forgets;
  config.qk_norm = pro ? QkNorm::kShared : QkNorm::kNone;
  config.output_gate = config.output_norm = config.kv_shift = pro;
  return config;
}

void set_size(ModelConfig& config, const std::string& size) {
  expect(size == "760m" || size == "360m" || size == "125m", "size", "760m, 360m or 125m", size);
  config.vocabulary = 50257;
  config.layers = size == "125m" ? 12 : 24;
  config.width = size == "760m" ? 1536 : size == "360m" ? 1024 : 768;
  if (config.heads == 0) config.heads = config.width / 64;
}

double training_flops_per_token(const ModelConfig& config, int64_t context_length) {
  const double width = static_cast<double>(config.width), heads = static_cast<double>(config.heads);
  const double head_dim = static_cast<double>(config.head_dim()), rows = static_cast<double>(config.state_rows());
  const double queries = heads * static_cast<double>(config.query_dim());
  const bool decays = config.mixer == Mixer::kDecay, gated = config.mixer == Mixer::kGated;
  const int scalar_gates = gated + config.corrects() + (config.forget_gate == ForgetGate::kFull);
  double projections = width * 2 * queries + width * width * (config.output_gate ? 3 : 2) +
                       width * heads * (scalar_gates + 2 * config.kv_shift);
  if (decays) projections += width * (width + heads * rows);
  // W_φ and directions are read by the query and by the key; there are as many directions as features, or half as many.
  const bool relu = config.has_state() && config.feature_map == FeatureMap::kRelu;
  if (relu) projections += 2 * heads * rows * head_dim;
  double drawn = config.has_random_features() ? 2 * heads * rows * head_dim : 0;
  if (config.feature_map == FeatureMap::kRandomFourier) drawn /= 2;
  const double mlp = 3 * width * static_cast<double>(config.mlp_width());
  const double matrices =
      static_cast<double>(config.layers) * (projections + mlp) + width * static_cast<double>(config.vocabulary);

  int64_t seen = context_length;  // multiply-adds of the mixing, a column of the values
  if (config.mixer == Mixer::kLocal) seen = std::min(2 * config.window, context_length);
  if (config.has_state())
    seen = config.state_rows() * (2 + config.corrects() + gated + config.forgets_state() + 2 * decays);
  const double mixing = static_cast<double>(config.layers) * width * static_cast<double>(seen);
  return 6 * matrices + 4 * static_cast<double>(config.layers) * drawn + 6 * mixing;
}

void to_json(nlohmann::json& json, const ModelConfig& config) {
  json = nlohmann::json::object();
  visit_model(config, JsonWriter{json});
}

void from_json(const nlohmann::json& json, ModelConfig& config) {
  JsonReader reader(json, "model");
  visit_model(config, reader);
  reader.finish();
}

}  // namespace lethe
