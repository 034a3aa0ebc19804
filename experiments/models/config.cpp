#include "experiments/models/config.hpp"

#include <algorithm>
#include <stdexcept>

#include "experiments/listed.hpp"
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
  visit("output_gate", config.output_gate);
  visit("output_norm", config.output_norm);
  visit("compute_dtype", config.compute_dtype);
  visit("residual_in_compute_dtype", config.residual_in_compute_dtype);
  visit("initialization", config.initialization);
  visit("mixer", config.mixer);
}

// Beyond these a product of sizes could exceed 64 bits, or a model's modules alone the memory.
constexpr int64_t kMostLayers = 1000, kLargestWidth = 1 << 20, kLargestTable = 1 << 26;
constexpr double kLargestRatio = 1024, kMostParameters = 0x1p44;

}  // namespace

int64_t ModelConfig::mlp_width() const {
  const double ratio = mlp_ratio.value_or(output_gate ? 3.5 : 4.0);
  const auto raw = static_cast<int64_t>(static_cast<double>(width) * ratio * 2 / 3);
  return (raw + mlp_multiple - 1) / mlp_multiple * mlp_multiple;
}

int64_t ModelConfig::compute_bytes() const {
  return compute_dtype == "float64" ? 8 : compute_dtype == "float32" ? 4 : 2;
}

bool ModelConfig::has_state() const {
  return std::ranges::any_of(mixer.all(),
                             [&](const MixerConfig& one) { return one.row().state_rows(*this, one.options()) > 0; });
}

bool ModelConfig::past_is_bounded() const {
  return std::ranges::all_of(mixer.all(), [](const MixerConfig& one) { return one.row().past_is_bounded; });
}

void ModelConfig::check() const {
  const auto bounded = [](const char* name, int64_t value, int64_t most) {
    expect(value > 0 && value <= most, name, "1 … " + std::to_string(most), std::to_string(value));
  };
  bounded("vocabulary", vocabulary, kLargestTable);
  bounded("layers", layers, kMostLayers);
  bounded("width", width, kLargestWidth);
  bounded("heads", heads, kLargestWidth);
  bounded("mlp_multiple", mlp_multiple, kLargestWidth);
  expect(width % heads == 0, "heads", "a divisor of width " + std::to_string(width), std::to_string(heads));
  expect(!mlp_ratio || (*mlp_ratio >= 0 && *mlp_ratio <= kLargestRatio), "mlp_ratio", "0 … 1024",
         std::to_string(mlp_ratio.value_or(0)));
  expect(compute_dtype == "float32" || compute_dtype == "bfloat16" || compute_dtype == "float16" ||
             compute_dtype == "float64",
         "compute_dtype", "float32, bfloat16, float16 or float64", compute_dtype);
  const auto mixers = static_cast<int64_t>(mixer.all().size());
  expect(mixers <= layers, "mixer", "at most one a layer, " + std::to_string(layers), std::to_string(mixers));
  int64_t state_rows = 0;  // of all heads, at most
  for (const MixerConfig& one : mixer.all()) {
    one.row().check(*this, one.options());
    state_rows = std::max(state_rows, heads * one.row().state_rows(*this, one.options()));
  }
  const double columns = 3.0 * static_cast<double>(mlp_width()) + 3.0 * static_cast<double>(state_rows);
  const double parameters =
      static_cast<double>(width) * (2.0 * static_cast<double>(vocabulary) + static_cast<double>(layers) * columns);
  expect(parameters <= kMostParameters, "parameters", "at most 2^44", std::to_string(parameters));
}

std::vector<Architecture> named_architectures() {
  std::vector<Architecture> all;
  for (const Mixer& row : mixers()) std::ranges::move(row.architectures(), std::back_inserter(all));
  return all;
}

ModelConfig named_architecture(const std::string& name) {
  for (const Architecture& architecture : named_architectures())
    if (architecture.name == name) return architecture.model;
  throw std::invalid_argument("architecture: expected one of " + listed(named_architectures(), &Architecture::name) +
                              ", found " + name);
}

ModelConfig llama(MixerStack mixer) {
  ModelConfig config;
  config.output_gate = config.output_norm = false;
  config.mixer = std::move(mixer);
  return config;
}

int64_t layers_for(const ModelConfig& config, int64_t with_mlp) { return with_mlp * (config.mlp_ratio == 0.0 ? 2 : 1); }

void set_size(ModelConfig& config, const std::string& size) {
  expect(size == "760m" || size == "360m" || size == "125m", "size", "760m, 360m or 125m", size);
  config.vocabulary = 50257;
  config.layers = layers_for(config, size == "125m" ? 12 : 24);
  config.width = size == "760m" ? 1536 : size == "360m" ? 1024 : 768;
  if (config.heads == 0) config.heads = config.width / 64;
}

double training_flops_per_token(const ModelConfig& config, int64_t context_length) {
  const auto width = static_cast<double>(config.width);
  const double mlp = 3 * width * static_cast<double>(config.mlp_width());
  double flops = 6 * width * static_cast<double>(config.vocabulary);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const MixerConfig& mixer = config.mixer.of(layer);
    flops += 6 * mlp + mixer.row().flops(config, mixer.options(), context_length);
  }
  return flops;
}

void to_json(nlohmann::json& json, const ModelConfig& config) {
  json = nlohmann::json::object();
  visit_model(config, JsonWriter{json});
  if (config.initialization == Initialization::kNormal)
    json.erase("initialization");  // younger than the names of models
}

void from_json(const nlohmann::json& json, ModelConfig& config) {
  JsonReader reader(json, "model");
  visit_model(config, reader);
  reader.finish();
}

}  // namespace lethe
