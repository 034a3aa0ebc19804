#include "experiments/training/conversion.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>

#include "experiments/models/json_members.hpp"

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
  visit("projections", conversion.projections);
  visit("feature_deviation", conversion.feature_deviation);
  visit("value_scale", conversion.value_scale);
}

constexpr uint64_t kFeatureStream = 0x9e3779b97f4a7c15;  // apart from the draws of initialize() with the same seed

bool is_linear(const ModelConfig& model) { return model.has_state() && model.feature_map == FeatureMap::kLinear; }

}  // namespace

double Conversion::value_scale_of(const ModelConfig& model) const {
  const bool additive = model.mixer == Mixer::kAdditive && !model.attention_norm && is_linear(model);
  return value_scale.value_or(additive ? 1.0 / 512 : 1.0);
}

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

void check_conversion(const Run& run) {
  if (!run.conversion) return;
  const Conversion& conversion = *run.conversion;
  const ModelConfig& from = conversion.source.model;
  expect(from.mixer == Mixer::kAttention && from.forget_gate == ForgetGate::kNone && !from.kv_shift &&
             from.qk_norm == QkNorm::kNone,
         "source", "softmax attention without forget gate, KV-shift and QK-norm", "another model");
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
  const bool forgets = run.model.forget_gate != ForgetGate::kNone && !run.model.forgets_state();
  expect(!forgets && !run.model.kv_shift && run.model.qk_norm == QkNorm::kNone, "model",
         "no forget gate (but of gated_linear and gated_delta), KV-shift or QK-norm, as the source", "some of them");
  const TrainingConfig &ours = run.training, &theirs = conversion.source.training;
  expect(ours.corpus == theirs.corpus && ours.tokenizer == theirs.tokenizer, "corpus",
         "the source's, " + theirs.corpus + " as " + theirs.tokenizer, ours.corpus + " as " + ours.tokenizer);
  const double deviation = conversion.feature_deviation, scale = conversion.value_scale.value_or(1);
  expect(deviation > 0 && std::isfinite(deviation), "feature_deviation", "> 0 and finite", std::to_string(deviation));
  expect(scale > 0 && std::isfinite(scale), "value_scale", "> 0 and finite, or absent", std::to_string(scale));
}

std::vector<ConvertedParameter> convert_weights(const Run& run, const LanguageModel& source, LanguageModel& target) {
  const torch::NoGradGuard no_gradient;
  const ModelConfig& model = run.model;
  const Conversion& conversion = *run.conversion;
  const torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(run.training.seed ^ kFeatureStream);
  const double scale = conversion.value_scale_of(model);
  const auto theirs = source->named_parameters();
  auto ours = target->named_parameters();
  const auto matrix = [&] {  // W_φ of all heads, [H,m,D]
    return torch::empty({model.heads, model.state_size, model.head_dim()})
        .normal_(0, conversion.feature_deviation, generator);
  };

  Tensor shared;  // W_φ of the layer at hand: one for its queries and keys
  std::vector<ConvertedParameter> report;
  for (auto& item : ours) {
    const std::string& name = item.key();
    Tensor& value = item.value();
    const bool query = name.ends_with("q_proj.weight");
    if (is_linear(model) && (query || name.ends_with("k_proj.weight"))) {
      if (conversion.projections == Projections::kFresh) {
        report.push_back({name, ConvertedParameter::kNew});
        continue;
      }
      if (query) shared = matrix();  // a layer registers its queries first
      const Tensor heads = theirs[name].unflatten(0, {model.heads, model.head_dim()}).to(torch::kCPU);  // [H,D,width]
      value.copy_(torch::matmul(shared, heads).flatten(0, 1));
      report.push_back({name, ConvertedParameter::kProduct});
    } else if (!theirs.contains(name)) {
      if (name.ends_with("feature.weight")) value.copy_(matrix().flatten(0, 1));
      report.push_back({name, ConvertedParameter::kNew});
    } else if (name.ends_with("v_proj.weight") && (model.mixer == Mixer::kDecay || scale != 1)) {
      Tensor rows = theirs[name] * scale;
      if (model.mixer == Mixer::kDecay) {
        std::string bias = name;
        bias.replace(bias.size() - std::string("v_proj.weight").size(), std::string::npos, "value_gate_proj.bias");
        rows *= torch::sigmoid(-ours[bias]).unsqueeze(1);  // 1 − σ(b_z)
      }
      value.copy_(rows);
      report.push_back({name, ConvertedParameter::kScaled});
    } else {
      value.copy_(theirs[name]);
      report.push_back({name, ConvertedParameter::kKept});
    }
  }
  for (const auto& item : theirs)
    if (!ours.contains(item.key())) report.push_back({item.key(), ConvertedParameter::kDropped});
  return report;
}

}  // namespace lethe
