#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

#include <stdexcept>

#include "experiments/claims/measures.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/mixers/attention.hpp"

namespace lethe {

constexpr double kOpened = 0.05;  // of the blocks

Run pruning_run(const nlohmann::json& settings, int64_t vocabulary, int64_t context_length,
                std::optional<double> log_tolerance, uint64_t seed) {
  ModelConfig architecture = named_architecture("fox-pro");
  architecture.mixer.only<AttentionConfig>().log_pruning_tolerance = log_tolerance;
  nlohmann::json sized = settings;
  sized["training"]["context_length"] = context_length;
  const char* label = log_tolerance ? "FoX (Pro) with ACP" : "FoX (Pro) without ACP";
  return make_run(label, architecture, sized, vocabulary, seed);
}

std::vector<Run> studied_runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs;
  for (int64_t seed = 0; seed < seeds_of(settings, "studied", 1); ++seed)
    runs.push_back(pruning_run(settings, vocabulary, whole_number(settings, "context_length"),
                               settings.at("log_tolerance").get<double>(), static_cast<uint64_t>(seed)));
  return runs;
}

LanguageModel untrained(const Artefact& model) {
  const auto& [_, config, training, conversion] = model.run;
  LanguageModel fresh(config, device_named(training.device), training.seed);
  fresh->eval();
  return fresh;
}

Pruned pruned(const Study& study, const Artefact& model, std::optional<double> log_tolerance, int64_t sequences,
              Moment moment) {
  const int64_t length = model.run.training.context_length;
  nlohmann::json settings = {{"length", length}, {"sequences", sequences}, {"log_tolerance", nullptr}};
  if (log_tolerance) settings["log_tolerance"] = *log_tolerance;
  if (moment == Moment::kBeforeTraining) settings["untrained"] = true;
  const auto found = study.measured(
      model, {"pruned", moment == Moment::kBeforeTraining ? 3 : 2}, settings, [&](const LanguageModel& trained) {
        LanguageModel changed =
            with_tolerance(moment == Moment::kAfterTraining ? trained : untrained(model), log_tolerance);
        const Evaluated evaluated =
            evaluation_named("per_token_loss")
                .run(changed, study.dataset, {{"length", length}, {"sequences", sequences}}, {});
        nlohmann::json json = {{"blocks", nlohmann::json::array()},
                               {"entries", nlohmann::json::array()},
                               {"losses", losses_of_sequences(evaluated, 0, length)}};
        if (!log_tolerance) return json;
        const auto heads = head_shares(changed, study.dataset, length, sequences);
        json["blocks"] = over_heads(heads, &HeadShare::blocks);
        json["entries"] = over_heads(heads, &HeadShare::entries);
        return json;
      });
  return {found.at("blocks"), found.at("entries"), found.at("losses")};
}

std::vector<double> untrained_shares(const Study& study, const Artefact& model, int64_t sequences) {
  const int64_t length = model.run.training.context_length;
  return study.measured(model, {"pruned_share_untrained", 2}, {{"length", length}, {"sequences", sequences}},
                        [&](const LanguageModel&) {
                          LanguageModel fresh = untrained(model);
                          nlohmann::json shares = nlohmann::json::array();
                          for (const HeadShare& share : head_shares(fresh, study.dataset, length, sequences))
                            shares.push_back(mean(share.blocks));
                          return shares;
                        });
}

Comparison gates_opened(const Study& study, const std::vector<Artefact>& models, int64_t sequences) {
  if (models.empty()) throw std::invalid_argument("gates: expected a model of that context, found none");
  Measurements opened(study.settings.value("confidence", kConfidence));
  for (const Artefact& model : models) {
    const auto tolerance = model.run.model.mixer.only<AttentionConfig>().log_pruning_tolerance;
    const Pruned after = pruned(study, model, tolerance, sequences),
                 before = pruned(study, model, tolerance, sequences, Moment::kBeforeTraining);
    std::vector<double> less;
    for (size_t s = 0; s < after.blocks.size(); ++s) less.push_back(before.blocks[s] - after.blocks[s]);
    opened.add(model.run, mean(less), less);
  }
  Comparison comparison = opened.compare("Training opens gates: before it at least 5 % more of the blocks are pruned",
                                         {{models.front().run.label, 1}}, {.low = kOpened});
  comparison.source = "control, ours";
  comparison.unit = "share of the blocks";
  return comparison;
}

void judge_by_gates(std::vector<Comparison>& statements, const Comparison& opened, const nlohmann::json& settings) {
  for (Comparison& statement : statements) {
    if (const std::string reason = settings.value("gates_out_of_reach", ""); !reason.empty())
      statement.out_of_reach = reason;
    if (opened.verdict() != Verdict::kReproduced)
      statement.open = "its gates have not left those of an untrained model";
  }
}

}  // namespace lethe
