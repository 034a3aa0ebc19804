// T2FW Table 2: the gated and the decay rule over the size of their state, against attention and local attention.

#include <cmath>

#include "experiments/papers/decaying_fast_weights/conversions.hpp"

namespace lethe::state_capacity {

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Row> rows = table_2(settings);
  rows.push_back(table_1().back());
  return conversion_runs(rows, settings, vocabulary);
}

Findings measure(const Study& study) {
  Conversions all = measure_conversions(study);
  const auto better = [&](const std::string& statement, const std::string& worse, const std::string& good,
                          bool headline) {
    all.add_difference(study, statement, worse, good, Expectation::positive(), headline);
  };
  // The paper's 99 % are against the model before the swap; a softmax that is trained on is a stronger rival, and the fair one.
  all.add_difference(study, "The decay rule with m = 32 recovers 99 % of attention's perplexity", "Decay m=32",
                     "Softmax trained on", {.high = std::log(1 / 0.99)}, true);
  all.findings.comparisons.back().no_refutation = all.short_of_paper;
  better("The decay rule improves from m = 4 to 16", "Decay m=4", "Decay m=16", true);
  better("The decay rule improves from m = 16 to 32", "Decay m=16", "Decay m=32", true);
  better("The gated rule improves from m = 4 to 16", "Gated m=4", "Gated m=16", true);
  better("The gated rule improves from m = 16 to 32", "Gated m=16", "Gated m=32", false);
  better("The decay rule is better than the gated one at m = 16", "Gated m=16", "Decay m=16", true);
  better("The decay rule is better than the gated one at m = 32", "Gated m=32", "Decay m=32", true);
  better("Attention is better than the decay rule with m = 32", "Decay m=32", "Softmax trained on", false);
  better("A window of attention is worse than the decay rule with m = 32", "Local attention", "Decay m=32", false);
  better("A window of attention is worse than the gated rule with m = 16", "Local attention", "Gated m=16", false);

  Comparison gap = all.losses.compare("The decay rule gains on the gated one from m = 16 to 32",
                                      {{"Gated m=32", 1}, {"Decay m=32", -1}, {"Gated m=16", -1}, {"Decay m=16", 1}},
                                      Expectation::positive());
  gap.source = "T2FW Table 2";
  const auto paper = [&](const char* row) { return std::log(paper_value(study, row, "perplexity")); };
  gap.paper = paper("Gated m=32") - paper("Decay m=32") - paper("Gated m=16") + paper("Decay m=16");
  all.findings.comparisons.push_back(gap);
  return all.findings;
}

}  // namespace lethe::state_capacity
