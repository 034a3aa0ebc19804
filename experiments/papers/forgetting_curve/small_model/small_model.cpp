// The forgetting curves of Llama-83M on training and other text (Curve Fig. 4, Appendix D.1).

#include <algorithm>
#include <cmath>

#include "experiments/json_file.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/claims/curves.hpp"
#include "experiments/papers/forgetting_curve/llama.hpp"
#include "experiments/papers/forgetting_curve/rows.hpp"

namespace lethe::small_model {
namespace {

// Other architectures of Llama-83M's sizes; not the paper's.
std::vector<std::string> other_rows(const nlohmann::json& settings) {
  return settings.value("other_rows", std::vector<std::string>());
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs = runs_of({kLlama, llama_83m()}, settings, vocabulary, curve_seeds(settings, kLlama));
  runs.push_back(untrained(runs.front()));
  for (const std::string& name : other_rows(settings)) {
    Row row = curve_row(name, settings);
    row.architecture.mlp_ratio = llama_83m().mlp_ratio;
    std::ranges::copy(runs_of(row, settings, vocabulary, curve_seeds(settings, name)), std::back_inserter(runs));
  }
  return runs;
}

Findings measure(const Study& study) {
  Curves curves(study);
  const std::string unread = "Llama on text that it never read", read = "Llama on text of its training";
  study.each([&](const Artefact& model) {
    if (model.run.label != kLlama) return curves.add(model, model.run.label);
    curves.add(model, unread);
    curves.add(model, read, {{"split", "train"}});
  });
  const int64_t half = whole_number(study.settings.at("training"), "context_length") / 2;
  const char* source = "Curve Fig. 4";
  const Comparison on_unread = curves.memory("", unread, coarse_memory, half, {});
  const Comparison on_read = curves.memory("", read, coarse_memory, half, {});
  Comparison robust{.statement = "Text that the model was trained on gives the same coarse memory, within an octave",
                    .unit = "octaves",
                    .expectation = Expectation::within(1),
                    .measured = std::log2(on_read.measured / on_unread.measured)};
  curves.findings.comparisons = {
      stated(curves.memory("A small model has coarse memory of half to all of its training length", unread,
                           coarse_memory, half, {.low = 1, .high = 2}),
             source, true),
      stated(curves.memory("A small model has no fine memory", unread, fine_memory, 1, Expectation::within(0)), source,
             true),
      stated(curves.gap("It copies at a quarter of its training length", {{unread, 1}, {"Untrained", -1}}, half / 2,
                        Expectation::positive()),
             source, true),
      stated(robust, source, true),
  };
  for (Comparison& comparison : curves.findings.comparisons) comparison.note = study.settings.value("first_run", "");
  curves.findings.comparisons.push_back(
      stated(curves.control("Untrained: no gap", "Untrained", half / 2, Expectation::within(0.01)), "control", true));
  for (const std::string& name : other_rows(study.settings)) {
    if (!curves.has(name)) continue;
    const ModelConfig architecture = curve_row(name, study.settings).architecture;
    const bool is_attention = architecture.mixer.of(0).if_own<AttentionConfig>() != nullptr;
    curves.findings.comparisons.push_back(
        is_attention ? stated(curves.memory(name + " has coarse memory of half to all of its training length", name,
                                            coarse_memory, half, {.low = 1, .high = 2}),
                              "ours", false)
                     : stated(curves.gap("Llama copies more than " + name + " at a quarter of its training length",
                                         {{unread, 1}, {name, -1}}, half / 2, Expectation::positive()),
                              "ours", false));
  }
  return curves.findings;
}

}  // namespace lethe::small_model
