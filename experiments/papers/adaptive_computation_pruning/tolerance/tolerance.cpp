// ACP Fig. 7: the pruned share and the rise of the loss over the tolerance ε.

#include <algorithm>
#include <cmath>

#include "experiments/claims/measures.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

namespace lethe::tolerance {
namespace {

/// "tolerance exp(-10)"
std::string name_of(double log_tolerance) {
  return "tolerance exp(" + std::to_string(static_cast<int64_t>(std::llround(log_tolerance))) + ")";
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  return {studied_run(settings, vocabulary)};
}

Findings measure(const Study& study) {
  Findings findings;
  const Run& run = study.trained.front().run;
  const int64_t length = run.training.context_length;
  const int64_t sequences = study.settings.at("evaluation").at("sequences");
  const auto log_tolerances =
      study.settings.at("log_tolerances").get<std::vector<double>>();  // from the largest ε down
  const auto add = [&](const std::string& variant, const char* implementation, const char* metric, const char* unit,
                       double value) {
    findings.records.push_back(record_of(study.experiment, run, 1, length, metric, unit, value));
    findings.records.back().variant = variant;
    findings.records.back().implementation = implementation;
    findings.records.back().samples = sequences;
  };

  std::vector<std::vector<double>> shares;
  double worst_loss = 0;
  study.each([&](const Artefact& model) {
    const double loss_without = pruned(study, model, std::nullopt, sequences).loss;
    add("without pruning", "lethe", "loss", "nats", loss_without);
    for (const double log_tolerance : log_tolerances) {
      const Pruned with = pruned(study, model, log_tolerance, sequences);
      shares.push_back(with.entries);
      worst_loss = std::max(worst_loss, std::abs(with.loss - loss_without));
      add(name_of(log_tolerance), "single pairs", "pruned_share", "1", mean(with.entries));
      add(name_of(log_tolerance), "lethe", "pruned_share", "1", mean(with.blocks));
      add(name_of(log_tolerance), "lethe", "loss", "nats", with.loss);
      study.progress(static_cast<double>(shares.size()) / static_cast<double>(log_tolerances.size()));
    }
  });

  std::vector<double> growth;  // the pruned share's, from the smallest to the largest tolerance, by sequence
  for (size_t sequence = 0; sequence < shares.front().size(); ++sequence)
    growth.push_back(shares.front()[sequence] - shares.back()[sequence]);
  findings.comparisons = {
      {.statement = "A smaller tolerance prunes less",
       .source = "ACP Fig. 7",
       .unit = "share",
       .headline = true,
       .expectation = Expectation::positive(),
       .measured = mean(growth),
       .band = band_of_mean(growth)},
      {.statement = "No tolerance up to exp(-1) changes the loss",
       .source = "ACP Section 4.3",
       .unit = "nats",
       .headline = true,
       .expectation = Expectation::within(study.settings.at("no_effect_margin")),
       .paper = 0,
       .measured = worst_loss},
  };
  return findings;
}

}  // namespace lethe::tolerance
