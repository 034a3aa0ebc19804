// ACP Fig. 4 and 5: the distribution of the savings over the heads of a model, and over the heads of each layer.

#include <algorithm>
#include <cmath>

#include "experiments/claims/measures.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

namespace lethe::per_head_savings {
namespace {

/// The share of heads for which `is` holds, expected above `threshold`, with the band of a share of few heads.
template <typename Predicate>
Comparison share_of_heads(const std::string& statement, const std::vector<double>& savings, Predicate is,
                          double threshold) {
  const auto heads = static_cast<double>(savings.size());
  const double share = static_cast<double>(std::ranges::count_if(savings, is)) / heads;
  // Agresti and Coull: two successes and two failures are added, so that a share of 0 or 1 has a band too.
  const double centre = (share * heads + 2) / (heads + 4);
  return {.statement = statement,
          .unit = threshold > 0 ? "share of heads above one half" : "share of heads",
          .expectation = Expectation::positive(),
          .measured = share - threshold,
          .band = 1.96 * std::sqrt(centre * (1 - centre) / (heads + 4))};
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  return {studied_run(settings, vocabulary)};
}

Findings measure(const Study& study) {
  Findings findings;
  const Run& run = study.trained.front().run;
  study.each([&](const Artefact& model) {
    const nlohmann::json pieces = {{"length", run.training.context_length},
                                   {"sequences", study.settings.at("evaluation").at("sequences")}};
    findings.records = records_of(study, run, evaluated(study, model, "pruned_share", pieces));
  });

  std::vector<double> savings;  // the mean share of pairs with D_ij < δ, by head, layer by layer
  for (const Record& record : findings.records)
    if (record.implementation == "single pairs") savings.push_back(record.value);
  const std::vector<double> first_layers(
      savings.begin(), savings.begin() + std::min<ptrdiff_t>(2 * run.model.heads, std::ssize(savings)));

  const auto is_local = [](double saving) { return saving > 0.5; };
  const auto is_global = [](double saving) { return saving < 0.25; };
  const auto is_extreme = [](double saving) { return saving < 0.25 || saving >= 0.75; };
  findings.comparisons = {
      share_of_heads("Most heads are local: most of their attention is pruned", savings, is_local, 0.5),
      share_of_heads("Some heads are global: less than a quarter of their attention is pruned", savings, is_global, 0),
      share_of_heads("Few heads lie between a quarter and three quarters", savings, is_extreme, 0.5),
      share_of_heads("The heads of the first two layers are local", first_layers, is_local, 0.5),
  };
  for (Comparison& comparison : findings.comparisons) comparison.source = "ACP Fig. 4";
  findings.comparisons[0].headline = findings.comparisons[1].headline = true;
  findings.comparisons.back().source = "ACP Fig. 5";
  return findings;
}

}  // namespace lethe::per_head_savings
