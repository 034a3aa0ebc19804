#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

#include "experiments/evaluation/evaluation.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/models/mixers/attention.hpp"

namespace lethe {

Run pruning_run(const nlohmann::json& settings, int64_t vocabulary, int64_t context_length,
                std::optional<double> log_tolerance) {
  ModelConfig architecture = named_architecture("fox-pro");
  architecture.mixer.only<AttentionConfig>().log_pruning_tolerance = log_tolerance;
  nlohmann::json sized = settings;
  sized["training"]["context_length"] = context_length;
  const char* label = log_tolerance ? "FoX (Pro) with ACP" : "FoX (Pro) without ACP";
  return make_run(label, architecture, sized, vocabulary, 0);
}

Run studied_run(const nlohmann::json& settings, int64_t vocabulary) {
  return pruning_run(settings, vocabulary, settings.at("context_length"), settings.at("log_tolerance").get<double>());
}

Pruned pruned(const Study& study, const Artefact& model, std::optional<double> log_tolerance, int64_t sequences) {
  const int64_t length = model.run.training.context_length;
  nlohmann::json settings = {{"length", length}, {"sequences", sequences}, {"log_tolerance", nullptr}};
  if (log_tolerance) settings["log_tolerance"] = *log_tolerance;
  const auto found = study.measured(model, {"pruned"}, settings, [&](const LanguageModel& weights) {
    LanguageModel changed = with_tolerance(weights, log_tolerance);
    const auto loss = evaluation_named("per_token_loss")
                          .run(changed, study.dataset, {{"length", length}, {"sequences", sequences}}, {})
                          .value("loss");
    nlohmann::json json = {{"blocks", nlohmann::json::array()}, {"entries", nlohmann::json::array()}, {"loss", loss}};
    if (!log_tolerance) return json;
    const auto heads = head_shares(changed, study.dataset, length, sequences);
    json["blocks"] = over_heads(heads, &HeadShare::blocks);
    json["entries"] = over_heads(heads, &HeadShare::entries);
    return json;
  });
  return {found.at("blocks"), found.at("entries"), found.at("loss")};
}

}  // namespace lethe
