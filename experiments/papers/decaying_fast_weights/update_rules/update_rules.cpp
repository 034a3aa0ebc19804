// T2FW Table 1: update rules with and without normalisation and feature map, and which of them diverge.

#include <algorithm>

#include "experiments/papers/decaying_fast_weights/conversions.hpp"

namespace lethe::update_rules {
namespace {

struct Difference {
  std::string statement, worse, better;
  bool headline = false;
};

// The paper's differences that are wide enough to assert; additive linear and delta without norm (20.0, 20.1) are a tie.
const std::vector<Difference>& differences() {
  static const std::vector<Difference> table = {
      {"Linear features: the gated rule is better than the additive one", "Additive linear", "Gated linear", true},
      {"Linear features: the decay rule is better than the additive one", "Additive linear", "Decay linear", true},
      {"The linear gated rule is better than the delta rule without attention norm", "Delta without norm",
       "Gated linear", true},
      {"The linear decay rule is better than the delta rule without attention norm", "Delta without norm",
       "Decay linear", true},
      {"Without ReLU and norm the additive rule is better than with both", "Additive baseline", "Additive linear",
       true},
      {"Without ReLU the gated rule is better", "Gated without norm", "Gated linear", true},
      {"Without ReLU the decay rule is better", "Decay without norm", "Decay linear", true},
      {"Without attention norm the delta rule is better", "Delta baseline", "Delta without norm", true},
      {"With ReLU the decay rule is better than the gated one", "Gated without norm", "Decay without norm"},
      {"With attention norm the delta rule is better than the additive one", "Additive baseline", "Delta baseline"},
  };
  return table;
}

struct Divergence {
  std::string statement, row, source;
};

const std::vector<Divergence>& divergences() {
  static const std::vector<Divergence> table = {
      {"The gated rule with attention norm diverges", "Gated baseline", "T2FW Table 1"},
      {"The additive rule with ReLU and without norm diverges", "Additive without norm", "T2FW Table 1"},
      {"The delta rule without ReLU and norms diverges", "Delta linear", "T2FW Table 1"},
      {"The additive rule with norm and without ReLU diverges", "Additive linear with norm", "T2FW Section 4.1.2"},
      {"The delta rule without sum norm diverges", "Delta without sum norm", "T2FW footnote 3"},
      {"The delta rule with a gate of 1/2 at the beginning diverges", "Delta with an open gate", "T2FW footnote 3"},
  };
  return table;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  return conversion_runs(table_1(), settings, vocabulary);
}

Findings measure(const Study& study) {
  Conversions all = measure_conversions(study);
  for (const Difference& d : differences())
    all.add_difference(study, d.statement, d.worse, d.better, Expectation::positive(), d.headline);
  const double margin = study.settings.at("no_effect_margin");
  all.add_difference(study, "Linear features and m = 4: gated and decay rule are alike", "Gated linear", "Decay linear",
                     Expectation::within(margin), false);

  // The share of diverged trainings, 0 to 1, is judged against one half.
  const auto add = [&](const std::string& statement, const std::string& source, double measured,
                       const Expectation& expectation, double paper) {
    all.findings.comparisons.push_back({.statement = statement,
                                        .source = source,
                                        .unit = "1",
                                        .expectation = expectation,
                                        .paper = paper,
                                        .measured = measured});
  };
  for (const Divergence& d : divergences()) add(d.statement, d.source, all.share_diverged(d.row), {.low = 0.5}, 1);
  double others = 0;
  for (const Row& row : table_1()) {
    const auto is_it = [&](const Divergence& d) { return d.row == row.name; };
    if (std::ranges::none_of(divergences(), is_it)) others += all.share_diverged(row.name);
  }
  add("The other rows of the table converge: so many don't", "T2FW Table 1", others, {.high = 0.5}, 0);
  return all.findings;
}

}  // namespace lethe::update_rules
