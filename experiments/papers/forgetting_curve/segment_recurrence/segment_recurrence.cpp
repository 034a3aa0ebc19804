// Perplexity and the forgetting curve of Llama-XL (Curve Fig. 5, Appendix D.2).

#include <cmath>

#include "experiments/claims/curves.hpp"
#include "experiments/claims/deciding.hpp"
#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/json_file.hpp"
#include "experiments/papers/forgetting_curve/llama.hpp"

namespace lethe::segment_recurrence {
namespace {

// The mean loss of the positions first + 1 … last of an evaluation, and its standard error with positions taken as independent.
struct Stretch {
  double loss = 0, error = 0;
};
Stretch stretch(const Evaluated& found, int64_t first, int64_t last) {
  const std::vector<double> losses = found.curve("loss_at_position"),
                            errors = found.curve("standard_error_at_position");
  Stretch mean_of;
  const auto count = static_cast<double>(last - first);
  for (int64_t i = first; i < last; ++i) {
    mean_of.loss += losses[i] / count;
    mean_of.error += errors[i] * errors[i] / (count * count);
  }
  mean_of.error = std::sqrt(mean_of.error);
  return mean_of;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  const int64_t segment = whole_number(settings, "segment");
  std::vector<Run> runs = runs_of({kLlamaXl, llama_xl(segment)}, settings, vocabulary, curve_seeds(settings, kLlamaXl));
  runs.push_back(make_run(kLlama, llama_83m(), settings, vocabulary, 0));
  return runs;
}

Findings measure(const Study& study) {
  Curves curves(study);
  const auto segment = whole_number(study.settings, "segment");
  const auto segments = whole_number(study.settings.at("evaluation"), "segments");
  const auto tokens = whole_number(study.settings.at("evaluation"), "tokens");
  const int64_t longest = segments * segment;
  std::vector<double> falls, errors;  // of the loss from the second segment to the last half, a seed each
  study.each([&](const Artefact& model) {
    curves.add(model, model.run.label);
    const Evaluated found =
        evaluated(study, model, "per_token_loss", {{"length", longest}, {"sequences", tokens / longest}},
                  {"loss_at_position", "standard_error_at_position"});
    for (const Point& point : loss_curve(model.run, found)) curves.findings.points.push_back(point);
    if (model.run.label != kLlamaXl) return;
    const Stretch second = stretch(found, segment, 2 * segment), late = stretch(found, longest / 2, longest);
    falls.push_back(second.loss - late.loss);
    errors.push_back(std::hypot(second.error, late.error));
  });
  const auto at = [&](const std::string& statement, const std::string& row, int64_t length,
                      const Expectation& expected) {
    return curves.gap(statement, {{row, 1}}, length, expected);
  };
  Comparison falling{.statement = "The loss of Llama-XL falls beyond its second segment",
                     .source = "Curve Fig. 5",
                     .unit = "nats",
                     .headline = true,
                     .expectation = Expectation::positive()};
  if (curves.has(kLlamaXl)) {
    falling.measured = mean(falls);
    falling.band = 1.96 * mean(errors);
    falling.would_decide = deciding_sample(falling, falling.band, 0, "the text");
  } else {
    falling = of_absent_row(falling, kLlamaXl);
  }
  curves.findings.comparisons = {
      falling,
      stated(at("Its copy and LM curves are one at a segment", kLlamaXl, segment, Expectation::within(0.01)),
             "Curve Fig. 5", false),
      stated(at("Its copy and LM curves are one at two segments", kLlamaXl, 2 * segment, Expectation::within(0.01)),
             "Curve Fig. 5", true),
      stated(at("Llama, which sees the whole text, copies two segments", kLlama, 2 * segment, Expectation::positive()),
             "control", true),
  };
  for (Comparison& comparison : curves.findings.comparisons) comparison.note = study.settings.value("first_run", "");
  return curves.findings;
}

}  // namespace lethe::segment_recurrence
