// The forgetting curves of the models of FoX's claims on memory (Curve Figs. 1 and 7 to 20).

#include <algorithm>
#include <cmath>

#include "experiments/claims/curves.hpp"
#include "experiments/papers/forgetting_transformer/memory_models.hpp"

namespace lethe::fox_models {

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  const std::vector<std::string> rows = settings.at("rows"), without = settings.value("without", std::vector<std::string>());
  std::vector<Run> runs = memory_runs(settings, vocabulary);
  std::erase_if(runs, [&](const Run& run) {
    return std::ranges::count(rows, run.label) == 0 ||
           std::ranges::count(without, run.label + ", seed " + std::to_string(run.training.seed)) > 0;
  });
  return runs;
}

Findings measure(const Study& study) {
  Curves curves(study);
  study.each([&](const Artefact& model) { curves.add_at_once(model); });

  const int64_t trained = whole_number(study.settings.at("training"), "context_length"), half = trained / 2,
                beyond = 2 * trained;
  const auto positive = Expectation::positive();
  const auto state = [&](Comparison comparison, const std::string& source, bool headline) {
    comparison.note = study.settings.value("rules_after_a_run", "");
    if (comparison.absent_row.empty() && std::isnan(comparison.measured))
      comparison.open = "this scale has no curve at that length";
    curves.findings.comparisons.push_back(stated(std::move(comparison), source, headline));
  };
  const std::string at_half = " at half of the training length";
  const std::vector<std::string> attention = study.settings.at("attention_rows");
  for (const std::string& row : attention)
    state(curves.gap(row + " copies" + at_half, {{row, 1}, {kUntrained, -1}}, half, positive), "Curve Table 3",
          row.ends_with("(Pro)"));
  for (const std::string& row : attention)
    state(curves.gap(row + " copies a quarter of its training length", {{row, 1}, {kUntrained, -1}}, half / 2, positive),
          "Curve Table 3", false);
  for (const std::string& other : {std::string(kLocalAttention), std::string("Mamba-2")}) {
    if (!curves.has(other)) continue;
    for (const std::string& row : attention)
      if (row.ends_with("(Pro)"))
        state(curves.gap(row + " copies more than " + other + at_half, {{row, 1}, {other, -1}}, half, positive),
              other == kLocalAttention ? "theory: window" : "Curve Section 4", false);
  }
  for (const std::string& row : attention)
    state(curves.gap(row + ": the curves meet at twice the training length", {{row, 1}}, beyond, Expectation::within(0.01)),
          "Curve Section 4", false);
  state(curves.control(std::string(kUntrained) + ": no gap", kUntrained, half, Expectation::within(0.01)), "control", true);
  return curves.findings;
}

}  // namespace lethe::fox_models
