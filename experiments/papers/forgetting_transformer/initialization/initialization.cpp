// FoX Fig. 20: how much a Transformer and FoX lose by another initialization.

#include <algorithm>
#include <iterator>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::initialization {
namespace {

const std::vector<std::string> kRows = {"Transformer (LLaMA)", "FoX (LLaMA)"};

/// The name of a row from the other initialization.
std::string scaled(const std::string& row) { return row + " from scaled matrices"; }

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs = table_3_runs(kRows, settings, vocabulary);
  for (const std::string& name : kRows) {
    Row row = table_3_row(name);
    row.name = scaled(name);
    row.architecture.initialization = Initialization::kScaled;
    std::ranges::copy(runs_of(row, settings, vocabulary, seeds_of(settings, row.name, 1)), std::back_inserter(runs));
  }
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  Measurements losses(study.settings.value("confidence", kConfidence));
  study.each([&](const Artefact& model) {
    const Run& run = model.run;
    const int64_t length = run.training.context_length;
    const Evaluated found = evaluate(study, model, length);
    losses.add(run, found.value("loss"), losses_of_sequences(found, 0, length));
    std::ranges::copy(records_of(study, run, found), std::back_inserter(findings.records));
    for (auto&& points : {training_curve(run, model), loss_curve(run, found)})
      findings.points.insert(findings.points.end(), points.begin(), points.end());
  });
  const std::string &transformer = kRows[0], &fox = kRows[1];
  const auto positive = Expectation::positive();
  findings.comparisons = {
      losses.compare(transformer + " is worse from scaled matrices", {{scaled(transformer), 1}, {transformer, -1}},
                     positive),
      losses.compare("Scaled matrices cost " + fox + " less than " + transformer,
                     {{scaled(transformer), 1}, {scaled(fox), -1}, {transformer, -1}, {fox, 1}}, positive),
      losses.compare(fox + " is alike from scaled matrices", {{scaled(fox), 1}, {fox, -1}},
                     Expectation::within(study.settings.at("no_effect_margin"))),
  };
  for (Comparison& comparison : findings.comparisons) {
    comparison.source = "FoX Fig. 20 and Appendix E.11";
    comparison.headline = &comparison != &findings.comparisons.back();
  }
  return findings;
}

}  // namespace lethe::initialization
