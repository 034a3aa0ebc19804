// The forgetting curves of architectures that are trained alike (Curve Table 3, Figs. 1 and 7 to 20).

#include <algorithm>

#include "experiments/claims/curves.hpp"
#include "experiments/listed.hpp"
#include "experiments/papers/forgetting_curve/rows.hpp"

namespace lethe::architectures {
namespace {

const std::string kUntrained = "Untrained";
const std::vector<std::string> kRecurrent = {"Decay", "Gated",    "Delta",          "Gated delta", "Mamba-2",
                                             "HGRN2", "DeltaNet", "Gated DeltaNet", "GLA",         "RetNet"};
const std::vector<std::string> kHybrids = {"Samba", "Mamba-2 + FoX"};

// The lengths that the statements read.
struct Lengths {
  explicit Lengths(const nlohmann::json& settings)
      : trained(whole_number(settings.at("training"), "context_length")), half(trained / 2),
        layers(whole_number(settings.at("model"), "layers")), window(whole_number(settings, "window")) {}

  // With the shift of keys and values a layer sees one token more. Beyond this L no scored prediction sees the first S.
  int64_t blind() const { return 2 * layers * window; }

  int64_t trained, half, layers, window;
};

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs;
  for (const std::string name : settings.at("rows"))
    std::ranges::copy(runs_of(curve_row(name, settings), settings, vocabulary, curve_seeds(settings, name)),
                      std::back_inserter(runs));
  runs.push_back(untrained(runs_of(curve_row(kTransformerRow, settings), settings, vocabulary, 1).front()));
  return runs;
}

Findings measure(const Study& study) {
  Curves curves(study);
  study.each([&](const Artefact& model) { curves.add(model, model.run.label); });

  const Lengths lengths(study.settings);
  const auto positive = Expectation::positive();
  const auto rows = [&](std::vector<std::string> all) {
    std::erase_if(all, [&](const std::string& row) { return !curves.has(row); });
    return all;
  };
  auto& comparisons = curves.findings.comparisons;
  const auto state = [&](Comparison comparison, const std::string& source, bool headline) {
    comparisons.push_back(stated(std::move(comparison), source, headline));
  };
  const auto late = [&](Comparison comparison, const std::string& source, bool headline) {
    comparison.note = all_notes({study.settings.value("recurrent_rows_after_a_run", ""), comparison.note});
    state(std::move(comparison), source, headline);
  };
  const std::string at_half = " at half of the training length", beyond = " at the training length";

  for (const std::string& row : rows({kTransformerRow, "FoX (Pro)", "Transformer (LLaMA)", "FoX (LLaMA)"})) {
    const bool pro = row.ends_with("(Pro)");
    state(curves.gap(row + " copies" + at_half, {{row, 1}, {kUntrained, -1}}, lengths.half, positive), "Curve Table 3",
          pro);
    state(curves.memory(row + " has coarse memory of at least half of its training length", row, coarse_memory,
                        lengths.half, {.low = 1}),
          "Curve Table 3", row == kTransformerRow);
  }
  for (const std::string& row : rows(kHybrids))
    late(curves.gap(row + " copies" + at_half, {{row, 1}, {kUntrained, -1}}, lengths.half, positive), "ours", false);
  for (const std::string& row : rows(kRecurrent)) {
    late(curves.gap(kTransformerRow + " copies more than " + row + at_half, {{kTransformerRow, 1}, {row, -1}},
                    lengths.half, positive),
         "Curve Section 4", row == "Decay" || row == "Gated");
    Comparison no_fine = curves.memory(row + " has no fine memory", row, fine_memory, 1, Expectation::within(0));
    if (curves.has(kTransformerRow)) {  // where it has none either, nothing sets the row apart
      no_fine.control = Control{kTransformerRow, curves.memory("", kTransformerRow, fine_memory, 1, {}).measured, 0};
      no_fine.note = "the control was added after a run";
    }
    late(no_fine, "Curve Section 4", false);
    late(curves.gap(row + " copies worse than it guesses" + beyond, {{row, 1}}, lengths.trained,
                    Expectation::negative()),
         "Curve Section 4", false);
  }
  for (const std::string& row : rows({kTransformerRow, "Transformer (LLaMA)"}))
    state(curves.gap(row + ": the curves meet" + beyond, {{row, 1}}, lengths.trained, Expectation::within(0.01)),
          "Curve Section 4", false);
  if (curves.has(kLocalRow) && lengths.blind() <= lengths.half) {
    state(curves.gap(kTransformerRow + " copies more than " + kLocalRow + at_half,
                     {{kTransformerRow, 1}, {kLocalRow, -1}}, lengths.half, positive),
          "theory: window", true);
    state(curves.control(kLocalRow + " copies nothing beyond its windows", kLocalRow, lengths.half,
                         Expectation::within(0)),
          "theory: window", true);
  }
  for (Comparison& comparison : comparisons)
    if (comparison.note.empty()) comparison.note = study.settings.value("first_run", "");
  state(curves.control(kUntrained + ": no gap", kUntrained, lengths.half, Expectation::within(0.01)), "control", true);
  return curves.findings;
}

}  // namespace lethe::architectures
