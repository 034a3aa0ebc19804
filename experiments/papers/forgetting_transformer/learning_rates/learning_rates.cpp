// FoX Table 3's headlines with a learning rate for each row: FoX and Transformer at several, each judged at its best.

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <limits>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/listed.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::learning_rates {
namespace {

std::string at_rate(const std::string& row, double rate) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", rate);
  return row + " at rate " + text.data();
}

/// The names of a row's runs: as it is in the ablations, at their rate, and at each of settings["learning_rates"].
std::vector<std::string> names_of(const std::string& row, const nlohmann::json& settings) {
  std::vector<std::string> names = {row};
  for (const double rate : settings.at("learning_rates")) names.push_back(at_rate(row, rate));
  return names;
}

/// The name of lowest loss among those that have run, by the mean over the seeds that two share, so never one that has diverged; the first where none
/// has.
std::string best_of(const std::vector<std::string>& names, const Measurements& losses) {
  std::string best = names.front();
  for (const std::string& name : names)
    if (losses.has(name) && (!losses.has(best) || mean(losses.by_seed({{name, 1}, {best, -1}})) < 0)) best = name;
  return best;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs = table_3_runs(kNoiseRows, settings, vocabulary);
  for (const std::string& name : kNoiseRows)
    for (const double rate : settings.at("learning_rates")) {
      Row row = table_3_row(name);
      row.name = at_rate(name, rate);
      nlohmann::json changed = settings;
      changed["training"]["learning_rate"] = rate;
      std::ranges::copy(runs_of(row, changed, vocabulary, seeds_of(settings, row.name, 1)), std::back_inserter(runs));
    }
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  Measurements losses(study.settings.value("confidence", kConfidence));
  study.each([&](const Artefact& artefact) {
    const Run& run = artefact.run;
    const int64_t length = run.training.context_length;
    const Evaluated found = evaluate(study, artefact, length);
    if (found.records.empty()) return losses.add(run, std::numeric_limits<double>::quiet_NaN());  // it has diverged
    losses.add(run, found.value("loss"), losses_of_sequences(found, 0, length));
    for (Record& record : records_of(study, run, found)) findings.records.push_back(std::move(record));
    findings.records.push_back(record_of(study.experiment, run, findings.records.back().batch, length, "learning_rate",
                                         "1", run.training.learning_rate));
    for (auto& point : training_curve(run, artefact)) findings.points.push_back(std::move(point));
  });

  const auto add = [&](Comparison comparison, const char* source, bool headline) {
    comparison.source = source;
    comparison.headline = headline;
    findings.comparisons.push_back(std::move(comparison));
  };
  const auto leave_open = [&](Comparison& comparison, const std::string& row) {  // until each rate of the row has run
    for (const std::string& name : names_of(row, study.settings))
      if (!losses.has(name)) {
        comparison.absent_row = name;
        comparison.out_of_reach = "this scale does not train " + name;
      }
  };
  const std::string after_a_run = study.settings.value("best_after_a_run", "");
  const auto positive = Expectation::positive();
  const auto best = [&](const std::string& row) { return best_of(names_of(row, study.settings), losses); };
  for (const char* architecture : {"LLaMA", "Pro"}) {
    const std::string fox = std::string("FoX (") + architecture + ")",
                      transformer = std::string("Transformer (") + architecture + ")";
    Comparison comparison = losses.compare(fox + " is better than " + transformer + ", each at the best of its rates",
                                           {{best(transformer), 1}, {best(fox), -1}}, positive);
    comparison.note = all_notes({best(transformer) + " against " + best(fox), after_a_run});
    if (study.settings.at("learning_rates").empty()) comparison.out_of_reach = "this scale trains at one rate";
    for (const std::string& row : {transformer, fox}) leave_open(comparison, row);
    add(comparison, "FoX Table 3, whose rows have one rate", true);
  }
  for (const std::string& row : kNoiseRows) {
    std::vector<std::string> others = names_of(row, study.settings);
    others.erase(others.begin());
    if (others.empty()) continue;
    Comparison comparison = losses.compare("Of the rates tried, the ablations' is the best for " + row,
                                           {{best_of(others, losses), 1}, {row, -1}}, positive);
    for (const std::string& name : others)
      if (losses.has(name)) comparison.note = all_notes({comparison.note, name});
    if (!comparison.note.empty()) comparison.note = all_notes({"tried: " + comparison.note, after_a_run});
    add(comparison, "control, ours", false);
  }
  return findings;
}

}  // namespace lethe::learning_rates
