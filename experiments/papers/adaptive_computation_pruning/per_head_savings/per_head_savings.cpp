// ACP Fig. 4 and 5: how the savings distribute over the heads of a model, and over those of each layer.

#include <algorithm>
#include <cmath>

#include "experiments/papers/adaptive_computation_pruning/heads.hpp"
#include "experiments/papers/claims.hpp"

namespace lethe::per_head_savings {
namespace {

/// The share of heads for which `is` holds, as a number above `threshold`, with the band that so few heads have.
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
  const Run run = studied_run(study.settings, study.dataset.vocabulary());
  LanguageModel model = study.model(run);
  const int64_t length = run.training.context_length;
  const int64_t sequences = study.settings.at("evaluation").at("sequences");
  const auto shares = head_shares(model, study.dataset, length, sequences);

  std::vector<double> savings;       // of every head: the mean share of pairs with D_ij < δ
  std::vector<double> first_layers;  // of the heads of the first two layers
  for (const HeadShare& share : shares) {
    for (const auto& [implementation, values] :
         {std::pair("lethe", share.blocks), std::pair("single pairs", share.entries)}) {
      Record record = record_of(study.experiment, run, 1, length, "pruned_share", "1", mean(values));
      record.variant = share.name();
      record.implementation = implementation;
      record.stddev = band_of_mean(values) / 1.96 * std::sqrt(static_cast<double>(values.size()));
      record.samples = static_cast<int64_t>(values.size());
      findings.records.push_back(record);
    }
    savings.push_back(mean(share.entries));
    if (share.layer < 2) first_layers.push_back(savings.back());
  }

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
