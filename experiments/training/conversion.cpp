#include "experiments/training/conversion.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

#include "experiments/models/json_members.hpp"
#include "experiments/models/mixers/attention.hpp"

namespace lethe {

using torch::Tensor;

template <>
struct EnumNames<Projections> {
  static inline const std::vector<std::pair<Projections, std::string>> names{{Projections::kProduct, "product"},
                                                                             {Projections::kFresh, "fresh"}};
};

namespace {

template <class Some, class Visitor>
void visit_conversion(Some& conversion, Visitor&& visit) {
  visit("source", conversion.source);
  visit("source_data", conversion.source_data);
  visit("projections", conversion.projections);
  visit("feature_deviation", conversion.feature_deviation);
  visit("value_scale", conversion.value_scale);
}

constexpr uint64_t kFeatureStream = 0x9e3779b97f4a7c15;  // separate from the draws of initialize() with the same seed

std::optional<Swap> swap_of(const ModelConfig& model, const MixerConfig& mixer) {
  return mixer.row().swap(model, mixer.options());
}

// Whether the run is its source's model, trained on.
bool continues(const Run& run) {
  const Conversion& conversion = *run.conversion;
  return !conversion.value_scale && nlohmann::json(run.model) == nlohmann::json(conversion.source.model);
}

// The layer of a parameter and its name below that layer's mixer; the name is empty for the trunk's parameters.
std::pair<int64_t, std::string> layer_and_name(const std::string& path) {
  const std::string layers = "model.layers.", mixer = ".attn.";
  const size_t at = path.find(mixer);
  if (!path.starts_with(layers) || at == std::string::npos) return {0, ""};
  return {std::stoll(path.substr(layers.size(), at - layers.size())), path.substr(at + mixer.size())};
}

}  // namespace

void to_json(nlohmann::json& json, const Conversion& conversion) {
  json = nlohmann::json::object();
  visit_conversion(conversion, JsonWriter{json});
}

void from_json(const nlohmann::json& json, Conversion& conversion) {
  JsonReader reader(json, "conversion");
  visit_conversion(conversion, reader);
  reader.finish();
}

void to_json(nlohmann::json& json, const std::shared_ptr<const Conversion>& conversion) {
  json = conversion ? nlohmann::json(*conversion) : nlohmann::json(nullptr);
}

void from_json(const nlohmann::json& json, std::shared_ptr<const Conversion>& conversion) {
  conversion = json.is_null() ? nullptr : std::make_shared<const Conversion>(json.get<Conversion>());
}

std::string source_data(const Conversion& conversion, const std::string& data_hash) {
  return conversion.source_data.empty() ? data_hash : conversion.source_data;
}

LanguageModel trained_source(const Run& run, const Dataset& dataset, const std::filesystem::path& root,
                             const std::function<void(const Progress&)>& progress) {
  const Run& source = run.conversion->source;
  const std::string data = source_data(*run.conversion, dataset.content_hash());
  const Artefact there{root / artefact_name(source, data), source};
  if (data == dataset.content_hash()) return load_model(trained(source, dataset, root, progress), run.training.device);
  expect(std::filesystem::exists(there.folder / "done.json"), "source",
         "the trained model " + there.folder.string() + ", whose data is another", "none");
  return load_model(there, run.training.device);
}

void check_conversion(const Run& run) {
  if (!run.conversion) return;
  const Conversion& conversion = *run.conversion;
  const TrainingConfig &ours = run.training, &theirs = conversion.source.training;
  expect(ours.tokenizer == theirs.tokenizer, "tokenizer", "the source's, " + theirs.tokenizer, ours.tokenizer);
  if (continues(run)) return;
  const ModelConfig& from = conversion.source.model;
  const auto* attention = from.mixer.all().size() == 1 ? from.mixer.all().front().if_own<AttentionConfig>() : nullptr;
  expect(attention != nullptr && attention->is_softmax(), "source",
         "softmax attention without forget gate, KV-shift and QK-norm", "another model");
  const auto same = [&](const char* name, auto member) {
    expect(member(run.model) == member(from), name, "the source's, " + std::to_string(member(from)),
           std::to_string(member(run.model)));
  };
  same("vocabulary", [](const ModelConfig& m) { return m.vocabulary; });
  same("layers", [](const ModelConfig& m) { return m.layers; });
  same("width", [](const ModelConfig& m) { return m.width; });
  same("heads", [](const ModelConfig& m) { return m.heads; });
  same("the MLP's width", [](const ModelConfig& m) { return m.mlp_width(); });
  same("output_gate", [](const ModelConfig& m) { return m.output_gate; });
  same("output_norm", [](const ModelConfig& m) { return m.output_norm; });
  for (const MixerConfig& mixer : run.model.mixer.all())
    expect(swap_of(run.model, mixer).has_value(), "mixer",
           "one that softmax attention can become: with no KV-shift or QK-norm, and attention with no forget gate",
           mixer.row().name);
  const double deviation = conversion.feature_deviation, scale = conversion.value_scale.value_or(1);
  expect(deviation > 0 && std::isfinite(deviation), "feature_deviation", "> 0 and finite", std::to_string(deviation));
  expect(scale > 0 && std::isfinite(scale), "value_scale", "> 0 and finite, or absent", std::to_string(scale));
}

namespace {

// Parameters, and the directions that are drawn and never trained.
std::vector<ConvertedParameter> kept_weights(const LanguageModel& source, LanguageModel& target) {
  std::vector<ConvertedParameter> report;
  const auto theirs = source->named_parameters(), drawn = source->named_buffers();
  for (auto& item : target->named_parameters()) {
    item.value().copy_(theirs[item.key()]);
    report.push_back({item.key(), ConvertedParameter::kKept});
  }
  for (auto& item : target->named_buffers()) item.value().copy_(drawn[item.key()]);
  return report;
}

}  // namespace

std::vector<ConvertedParameter> convert_weights(const Run& run, const LanguageModel& source, LanguageModel& target) {
  const torch::NoGradGuard no_gradient;
  if (continues(run)) return kept_weights(source, target);
  const ModelConfig& model = run.model;
  const Conversion& conversion = *run.conversion;
  const torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(run.training.seed ^ kFeatureStream);
  const auto theirs = source->named_parameters();
  auto ours = target->named_parameters();

  Tensor shared;  // W_φ of the current layer, shared by its queries and keys
  std::vector<ConvertedParameter> report;
  for (auto& item : ours) {
    const std::string& path = item.key();
    Tensor& value = item.value();
    const auto [layer, name] = layer_and_name(path);
    const MixerConfig& mixer = model.mixer.of(layer);
    const Swap swap = swap_of(model, mixer).value();
    const double scale = conversion.value_scale.value_or(swap.value_scale);
    const auto matrix = [&] {  // W_φ of all heads, [H,m,D]
      const int64_t rows = mixer.row().state_rows(model, mixer.options());
      return torch::empty({model.heads, rows, model.head_dim()}).normal_(0, conversion.feature_deviation, generator);
    };
    const bool query = name == "q_proj.weight";
    if (swap.product && (query || name == "k_proj.weight")) {
      if (conversion.projections == Projections::kFresh) {
        report.push_back({path, ConvertedParameter::kNew});
        continue;
      }
      if (query) shared = matrix();  // a layer registers its queries first
      const Tensor heads = theirs[path].unflatten(0, {model.heads, model.head_dim()}).to(torch::kCPU);  // [H,D,width]
      value.copy_(torch::matmul(shared, heads).flatten(0, 1));
      report.push_back({path, ConvertedParameter::kProduct});
    } else if (!theirs.contains(path)) {
      if (!name.empty() && name == swap.feature_map) value.copy_(matrix().flatten(0, 1));
      report.push_back({path, ConvertedParameter::kNew});
    } else if (name == "v_proj.weight" && (!swap.value_gate.empty() || scale != 1)) {
      Tensor rows = theirs[path] * scale;
      if (!swap.value_gate.empty()) {
        const std::string bias = path.substr(0, path.size() - name.size()) + swap.value_gate;
        rows *= (swap.value_gate_is_bounded ? torch::sigmoid(-ours[bias]) : 1 - ours[bias]).unsqueeze(1);  // 1 − σ(b_z)
      }
      value.copy_(rows);
      report.push_back({path, ConvertedParameter::kScaled});
    } else {
      value.copy_(theirs[path]);
      report.push_back({path, ConvertedParameter::kKept});
    }
  }
  for (const auto& item : theirs)
    if (!ours.contains(item.key())) report.push_back({item.key(), ConvertedParameter::kDropped});
  return report;
}

}  // namespace lethe
