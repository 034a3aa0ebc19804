// FoX Fig. 4: a needle in a haystack, within the training length and beyond.

#include <algorithm>
#include <map>

#include "experiments/claims/measures.hpp"
#include "experiments/evaluation/needle.hpp"
#include "experiments/models/mixers/local.hpp"
#include "experiments/papers/forgetting_transformer/memory_models.hpp"

namespace lethe::needle {
namespace {

const std::vector<std::string> kKept = {"exact_match_at_length_and_depth", "tokens_correct_at_length_and_depth",
                                        "log_probability_at_length_and_depth", "gain_at_length_and_depth"};

/// Adds a run's mean of a quantity over the prompts whose length is accepted; nothing where the scale has none.
template <class Accept>
void add_mean(Measurements& into, const Run& run, const std::vector<Point>& points, const std::string& quantity,
              Accept&& accept) {
  std::vector<double> values;
  for (const Point& point : points)
    if (point.quantity == quantity && accept(point.x)) values.push_back(point.value);
  if (!values.empty()) into.add(run, mean(values));
}

/// What the comparisons read: means over the prompts of a run; of the controls, of each haystack over its depths.
struct Means {
  explicit Means(double confidence)
      : within(confidence), beyond(confidence), exact(confidence), of_haystacks(confidence) {}
  Measurements within, beyond, exact, of_haystacks;
};

/// Tokens before the answer that hold all that a model reads, 0 where none bounds it: n layers of local attention read n·(window − 1) tokens back.
int64_t reach_of(const ModelConfig& model) {
  const auto* local = model.mixer.of(0).if_own<LocalConfig>();
  return local == nullptr ? 0 : model.layers * (local->window - 1);
}

/// Adds a control's mean gain in each haystack, over the depths at which the needle lies beyond its reach: the prompts without the needle differ
/// from haystack to haystack alone.
void add_control(const Study& study, const Run& run, const std::vector<Point>& points, Measurements& into) {
  const NeedleSettings needle;  // a token has a byte or more; 32: "Answer:" and the line breaks
  const auto most_tokens = static_cast<double>(needle.question.size() + needle.begin.size() + needle.end.size() + 32);
  const auto hidden = static_cast<double>(reach_of(run.model)) + most_tokens;
  const auto repeats = whole_number(study.settings.at("needle"), "repeats");
  std::map<std::pair<double, double>, int64_t> seen;  // prompts of a length and depth, in the order of the haystacks
  std::map<std::pair<double, int64_t>, std::vector<double>> gains;
  for (const Point& point : points) {
    if (point.quantity != kKept.back()) continue;
    const int64_t haystack = seen[{point.x, point.y}]++ % repeats;
    if (reach_of(run.model) > 0 && (1 - point.y / 100) * point.x < hidden) continue;
    gains[{point.x, haystack}].push_back(point.value);
  }
  uint64_t number = 0;
  for (const auto& [_, of_depths] : gains) into.add(run.label, number++, mean(of_depths));
}

void add_run(const Study& study, const Run& run, const Evaluated& found, const std::string& prompt, Means& means,
             Findings& findings) {
  const auto trained = study.settings.at("training").at("context_length").get<double>();
  const std::string& gain = kKept.back();
  for (Record record : records_of(study, run, found)) {
    record.implementation = prompt == "paper" ? "lethe" : "with the code's prompt";
    findings.records.push_back(record);
  }
  for (Point point : found.points) {
    point.variant = run.label;
    point.seed = run.training.seed;
    if (prompt != "paper") point.quantity = prompt + "_" + point.quantity;
    findings.points.push_back(point);
  }
  if (prompt != "paper") return;
  const auto is_within = [=](double length) { return length <= trained; };
  add_mean(means.within, run, found.points, gain, is_within);
  add_mean(means.beyond, run, found.points, gain, [=](double length) { return length > trained; });
  add_mean(means.exact, run, found.points, kKept.front(), is_within);
  if (run.label == kLocalAttention || run.label == kUntrained)
    add_control(study, run, found.points, means.of_haystacks);
}

std::vector<Comparison> comparisons_of(const Study& study, const Means& means) {
  std::vector<Comparison> all;
  const auto add = [&](Comparison comparison, const char* source, const char* unit, bool headline) {
    comparison.source = source;
    comparison.unit = unit;
    comparison.headline = headline;
    all.push_back(comparison);
  };
  const auto positive = Expectation::positive();
  constexpr const char* kFigure = "FoX Fig. 4 and Section 4.3";
  for (const std::string model : {"FoX (Pro)", "Transformer (Pro)", "FoX (LLaMA)", "Transformer (LLaMA)"}) {
    Comparison gain =
        means.within.compare(model + " finds the needle within the training length", {{model, 1}}, positive);
    if (gain.measured == 0)
      gain.open =
          "it answers alike with the needle and without, to the last bit: with this mean no number of runs would "
          "decide it";
    add(gain, kFigure, "nats a token", model.ends_with("(Pro)"));
    Comparison exact =
        means.exact.compare(model + " writes the needle's answer word for word within the training length",
                            {{model, 1}}, {.low = 0.9, .high = 1, .direction = +1});
    if (exact.measured == 0) {
      exact.out_of_reach = "a model of this size answers no prompt word for word";
      exact.note = study.settings.value("no_answer_after_a_run", "");
    }
    add(exact, kFigure, "share of the prompts", false);
  }
  for (const std::string trunk : {"(Pro)", "(LLaMA)"})
    add(means.beyond.compare("FoX " + trunk + " finds more than Transformer " + trunk + " beyond the training length",
                             {{"FoX " + trunk, 1}, {"Transformer " + trunk, -1}}, positive),
        kFigure, "nats a token", true);
  add(means.within.compare("The delta rule finds less than FoX (LLaMA) within the training length",
                           {{"FoX (LLaMA)", 1}, {kDeltaRule, -1}}, positive),
      kFigure, "nats a token", true);
  for (const auto& row : study.settings.value("recurrent_rows", std::vector<std::string>())) {
    Comparison comparison = means.within.compare(row + " finds less than FoX (Pro) within the training length",
                                                 {{"FoX (Pro)", 1}, {row, -1}}, positive);
    comparison.note = study.settings.value("recurrent_rule_after_a_run", "");
    const bool in_figure_4 = row == "Mamba-2" || row == "DeltaNet";
    add(comparison, in_figure_4 ? kFigure : "FoX Fig. 14 and Section 4.3", "nats a token", false);
  }
  const auto none = Expectation::within(study.settings.at("no_effect_margin"));
  for (const std::string control : {kLocalAttention, kUntrained}) {
    Comparison comparison = means.of_haystacks.compare("Control: " + control + " finds nothing", {{control, 1}}, none);
    comparison.note = study.settings.value("control_after_a_run", "");
    add(comparison, "control", "nats a token", true);
  }
  return all;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) { return memory_runs(settings, vocabulary); }

Findings measure(const Study& study) {
  Findings findings;
  Means means(study.settings.value("confidence", kConfidence));
  study.each([&](const Artefact& model) {
    for (const std::string prompt : {"paper", "code"}) {
      nlohmann::json settings = study.settings.at("needle");
      settings["prompt"] = prompt;
      add_run(study, model.run, evaluated(study, model, "needle", settings, kKept), prompt, means, findings);
    }
  });
  findings.comparisons = comparisons_of(study, means);
  return findings;
}

}  // namespace lethe::needle
