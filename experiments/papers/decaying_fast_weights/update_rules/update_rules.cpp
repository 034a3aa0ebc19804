// T2FW Table 1: update rules with and without normalisation and feature map, and which of them diverge.

#include <algorithm>
#include <iterator>

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
      {"The decay rule without the sigmoid of its gates diverges", kNoSigmoid, "T2FW footnote 1"},
  };
  return table;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Row> rows = table_1();
  std::ranges::copy(decay_variants(), std::back_inserter(rows));
  return conversion_runs(rows, settings, vocabulary);
}

Findings measure(const Study& study) {
  Conversions all = measure_conversions(study);
  for (const Difference& d : differences())
    all.add_difference(study, d.statement, d.worse, d.better, Expectation::positive(), d.headline);
  const double margin = study.settings.at("no_effect_margin");
  all.add_difference(study, "Linear features and m = 4: gated and decay rule are alike", "Gated linear", "Decay linear",
                     Expectation::within(margin), false);

  // The gain by gating what is written, at most the margin.
  Comparison gain = all.losses.compare("A write gate brings the linear decay rule nothing",
                                       {{kWriteGate, -1}, {"Decay linear", 1}}, {.high = margin});
  gain.source = "T2FW Section 3, write gate";
  gain.open = all.dead("Decay linear");
  gain.note = study.settings.value("decay_variants_after_a_run", "");
  all.findings.comparisons.push_back(gain);

  // The strongest rival, whichever it is here: the paper's was the delta rule without attention norm, its linear one diverged.
  for (const char* rule : {"Gated linear", "Decay linear"}) {
    std::string best;
    for (const char* delta : {"Delta baseline", "Delta without norm", "Delta linear"})
      if (all.losses.has(delta) && mean(all.diverged.at(delta)) == 0 &&
          (best.empty() || all.losses.mean_of(delta) < all.losses.mean_of(best)))
        best = delta;
    Comparison comparison =
        all.losses.compare(std::string(rule) + " is better than the best delta rule that converges" +
                               (best.empty() ? "" : ", here " + best),
                           {{best, 1}, {rule, -1}}, Expectation::positive());
    comparison.source = "T2FW Section 4.1";
    comparison.headline = true;
    if (!best.empty()) comparison.open = all.dead(rule).empty() ? all.dead(best) : all.dead(rule);
    all.findings.comparisons.push_back(comparison);
  }

  for (Comparison& comparison : all.findings.comparisons)
    if (comparison.note.empty()) comparison.note = study.settings.value("first_run", "");

  for (const Divergence& d : divergences()) {
    all.add_divergence(d.statement, d.source, d.row);
    if (d.row == kNoSigmoid)
      all.findings.comparisons.back().note = study.settings.value("decay_variants_after_a_run", "");
  }
  Comparison others{.statement = "The other rows of the table converge: so many don't",
                    .source = "T2FW Table 1",
                    .unit = "1",
                    .expectation = {.high = 0.5},
                    .paper = 0,
                    .no_refutation = all.short_of_paper};
  for (const Row& row : table_1()) {
    const auto is_it = [&](const Divergence& d) { return d.row == row.name; };
    if (std::ranges::any_of(divergences(), is_it) || !all.diverged.contains(row.name)) continue;
    others.measured += mean(all.diverged.at(row.name));
    if (row.name != kWithoutContext && others.open.empty()) others.open = all.dead(row.name);
  }
  all.findings.comparisons.push_back(others);
  return all.findings;
}

}  // namespace lethe::update_rules
