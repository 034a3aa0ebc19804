// ACP Fig. 7: the pruned share and the rise of the loss over the tolerance ε.

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

namespace lethe::tolerance {
namespace {

/// "tolerance exp(-10)"
std::string name_of(double log_tolerance) {
  return "tolerance exp(" + std::to_string(static_cast<int64_t>(std::llround(log_tolerance))) + ")";
}

const std::string kUnpruned = "without pruning";

/// The two statements: the block that a share is counted in may be so large that ε changes nothing, which is said instead of an equality.
std::vector<Comparison> statements(const Study& study, const Measurements& shares, const Measurements& losses,
                                   const std::vector<std::string>& names) {
  Comparison less = shares.compare("A smaller tolerance prunes less, in blocks",
                                   {{names.front(), 1}, {names.back(), -1}}, Expectation::positive());
  less.source = "ACP Fig. 7";
  less.unit = "share of the blocks";
  less.note = "δ is monotone in ε by definition, so this can at most tie; it was a headline once";
  // The tolerance with the largest change decides for all.
  Comparison worst;
  for (const std::string& name : names) {
    Comparison one = losses.compare("No tolerance up to exp(-1) changes the loss", {{name, 1}, {kUnpruned, -1}},
                                    Expectation::within(study.settings.at("no_effect_margin")));
    if (worst.statement.empty() || std::abs(one.measured) + one.band > std::abs(worst.measured) + worst.band)
      worst = one;
  }
  worst.source = "ACP Section 4.3";
  worst.headline = true;
  worst.paper = 0;
  if (less.measured == 0) less.open = worst.open = "all tolerances skip the same blocks";
  return {less, worst};
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) { return studied_runs(settings, vocabulary); }

Findings measure(const Study& study) {
  Findings findings;
  const int64_t sequences = study.settings.at("evaluation").at("sequences");
  const auto log_tolerances =
      study.settings.at("log_tolerances").get<std::vector<double>>();  // from the largest ε down
  const double confidence = study.settings.value("confidence", kConfidence);
  Measurements shares(confidence), losses(confidence);
  std::vector<std::string> names;
  for (const double log_tolerance : log_tolerances) names.push_back(name_of(log_tolerance));

  study.each([&](const Artefact& model) {
    const Run& run = model.run;
    const auto add = [&](const std::string& variant, const char* implementation, const char* metric, const char* unit,
                         double value) {
      findings.records.push_back(record_of(study.experiment, run, 1, run.training.context_length, metric, unit, value));
      findings.records.back().variant = variant;
      findings.records.back().implementation = implementation;
      findings.records.back().samples = sequences;
    };
    const uint64_t seed = run.training.seed;
    const Pruned without = pruned(study, model, std::nullopt, sequences);
    add(kUnpruned, "lethe", "loss", "nats", without.loss());
    losses.add(kUnpruned, seed, without.loss(), without.losses);
    for (const double log_tolerance : log_tolerances) {
      const Pruned with = pruned(study, model, log_tolerance, sequences),
                   before = pruned(study, model, log_tolerance, sequences, Moment::kBeforeTraining);
      const std::string name = name_of(log_tolerance);
      shares.add(name, seed, mean(with.blocks), with.blocks);
      losses.add(name, seed, with.loss(), with.losses);
      add(name, "single pairs", "pruned_share", "1", mean(with.entries));
      add(name, "lethe", "pruned_share", "1", mean(with.blocks));
      add(name, "lethe", "pruned_share_untrained", "1", mean(before.blocks));
      add(name, "lethe", "loss", "nats", with.loss());
    }
  });
  findings.comparisons = statements(study, shares, losses, names);
  const Comparison opened = gates_opened(study, study.trained, sequences);
  judge_by_gates(findings.comparisons, opened, study.settings);
  return findings;
}

}  // namespace lethe::tolerance
