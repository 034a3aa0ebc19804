#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

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

}  // namespace lethe
