#include "experiments/papers/decaying_fast_weights/conversions.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/claims/measures.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/mixers/additive.hpp"
#include "experiments/models/mixers/decay.hpp"
#include "experiments/models/mixers/delta.hpp"
#include "experiments/models/mixers/gated.hpp"
#include "experiments/models/mixers/local.hpp"
#include "experiments/training/conversion.hpp"

namespace lethe {
namespace {

constexpr int64_t kTable1States = 4;
const std::string kSource = "Softmax before the swap", kTrainedOn = "Softmax trained on";

// Transformer (LLaMA) with another mixer in place of attention and the same rotation.
template <class Own>
ModelConfig rule(FeatureMap features, int64_t states) {
  Own own;
  own.rope = true;
  own.feature_map = features;
  own.state_size = states;
  return llama(own);
}

// "Baseline" of Table 1: ReLU features and attention norm, and sum norm for the delta rule.
template <class Own>
ModelConfig baseline() {
  ModelConfig model = rule<Own>(FeatureMap::kRelu, kTable1States);
  if constexpr (requires(Own own) { own.attention_norm; }) model.mixer.only<Own>().attention_norm = true;
  if constexpr (requires(Own own) { own.sum_norm; }) model.mixer.only<Own>().sum_norm = true;
  return model;
}

template <class Own>
ModelConfig without_norm() {
  ModelConfig model = baseline<Own>();
  if constexpr (requires(Own own) { own.attention_norm; }) model.mixer.only<Own>().attention_norm = false;
  return model;
}

template <class Own>
ModelConfig linear(int64_t states) {
  return rule<Own>(FeatureMap::kLinear, states);
}

}  // namespace

std::vector<Row> table_1() {
  ModelConfig blind = named_architecture("local");
  blind.mixer.only<LocalConfig>().window = 1;
  ModelConfig linear_with_norm = linear<AdditiveConfig>(kTable1States);
  linear_with_norm.mixer.only<AdditiveConfig>().attention_norm = true;
  ModelConfig without_sum_norm = without_norm<DeltaConfig>(), open_gate = without_norm<DeltaConfig>();
  without_sum_norm.mixer.only<DeltaConfig>().sum_norm = false;
  open_gate.mixer.only<DeltaConfig>().write_bias = 0;
  return {
      {"Additive baseline", baseline<AdditiveConfig>()},
      {"Additive without norm", without_norm<AdditiveConfig>()},
      {"Additive linear", linear<AdditiveConfig>(kTable1States)},
      {"Delta baseline", baseline<DeltaConfig>()},
      {"Delta without norm", without_norm<DeltaConfig>()},
      {"Delta linear", linear<DeltaConfig>(kTable1States)},
      {"Gated baseline", baseline<GatedConfig>()},
      {"Gated without norm", without_norm<GatedConfig>()},
      {"Gated linear", linear<GatedConfig>(kTable1States)},
      {"Decay without norm", without_norm<DecayConfig>()},
      {"Decay linear", linear<DecayConfig>(kTable1States)},
      {"Additive linear with norm", linear_with_norm},
      {"Delta without sum norm", without_sum_norm},
      {"Delta with an open gate", open_gate},
      {kWithoutContext, blind},
  };
}

std::vector<Row> decay_variants() {
  ModelConfig write_gate = linear<DecayConfig>(kTable1States), no_sigmoid = write_gate;
  write_gate.mixer.only<DecayConfig>().write_gate = true;
  no_sigmoid.mixer.only<DecayConfig>().sigmoid = false;
  return {{kWriteGate, write_gate}, {kNoSigmoid, no_sigmoid}};
}

std::vector<Row> table_2(const nlohmann::json& settings) {
  const int64_t window = settings.at("window");
  ModelConfig local = named_architecture("local");
  local.mixer.only<LocalConfig>().window = window;
  std::vector<Row> rows = {{kTrainedOn, named_architecture("transformer-llama")},
                           {"Local attention", local},
                           {"Gated m=4", linear<GatedConfig>(kTable1States)},
                           {"Gated m=16", linear<GatedConfig>(16)},
                           {"Gated m=32", linear<GatedConfig>(32)},
                           {"Decay m=4", linear<DecayConfig>(kTable1States)},
                           {"Decay m=16", linear<DecayConfig>(16)},
                           {"Decay m=32", linear<DecayConfig>(32)}};
  // The paper's window is a thirty-second of GPT-2's context; at a short context a window of that share is added.
  const int64_t share = whole_number(settings.at("training"), "context_length") / 32;
  if (share != window && share > 0) {
    local.mixer.only<LocalConfig>().window = share;
    rows.insert(rows.begin() + 2, {"Local attention of context / 32", local});
  }
  return rows;
}

Run source_run(const nlohmann::json& settings, int64_t vocabulary) {
  nlohmann::json own = settings;
  own["training"].update(settings.at("source"));
  return make_run(kSource, named_architecture("transformer-llama"), own, vocabulary, 0);
}

std::vector<Run> conversion_runs(const std::vector<Row>& rows, const nlohmann::json& settings, int64_t vocabulary) {
  const Run source = source_run(settings, vocabulary);
  const auto conversion = std::make_shared<const Conversion>(Conversion{.source = source});
  std::vector<Run> runs = {source};
  for (const Row& row : rows)
    for (Run& run : runs_of(row, settings, vocabulary, seeds_of(settings, row.name, settings.at("seeds")))) {
      run.conversion = conversion;
      run.training.divergence_is_a_result = true;
      runs.push_back(std::move(run));
    }
  return runs;
}

std::string Conversions::dead(const std::string& row) const {
  if (!losses.has(row) || !losses.has(kWithoutContext)) return "";
  const Comparison reads = losses.compare("", {{kWithoutContext, 1}, {row, -1}}, Expectation::positive());
  if (reads.verdict() == Verdict::kTrendReproduced) return "";
  const std::string reason = row + " is not better than a model without context";
  if (const auto found = diverged.find(row); found != diverged.end() && mean(found->second) == 1)
    return reason + ": each of its runs diverged, " + std::to_string(found->second.size()) +
           " here, and from those no number of runs follows; would be decided by one that converges, at a difference "
           "beyond the band";
  if (!reads.open.empty()) return reason + ": " + reads.open;
  if (!std::isfinite(reads.measured))
    return reason + ": one of its runs has no loss, and without a mean no number of runs follows";
  if (reads.measured > 0) return reason + "; that " + reads.lacks();
  return reason + "; with this mean no number of runs would show it to be";
}

void Conversions::add_difference(const Study& study, const std::string& statement, const std::string& worse,
                                 const std::string& better, const Expectation& expectation, bool headline) {
  Comparison comparison = losses.compare(statement, {{worse, 1}, {better, -1}}, expectation);
  comparison.source = study.experiment.claim == "update_rules" ? "T2FW Table 1" : "T2FW Table 2";
  comparison.headline = headline;
  // The paper's softmax is the model before the swap: ours, trained on as long as the others, is a stronger rival.
  const auto paper = [&](const std::string& row) {
    return paper_value(study, row == kTrainedOn ? kSource : row, "perplexity");
  };
  comparison.paper = std::log(paper(worse) / paper(better));
  comparison.open = dead(worse).empty() ? dead(better) : dead(worse);
  findings.comparisons.push_back(comparison);
}

void Conversions::add_divergence(const std::string& statement, const std::string& source, const std::string& row) {
  Comparison comparison{.statement = statement, .source = source, .unit = "1", .expectation = {.low = 0.5}, .paper = 1};
  if (diverged.contains(row)) comparison.measured = mean(diverged.at(row));
  else {
    comparison.measured = std::numeric_limits<double>::quiet_NaN();
    comparison.absent_row = row;
    comparison.out_of_reach = "this scale does not train " + row;
  }
  comparison.no_refutation = short_of_paper;
  findings.comparisons.push_back(comparison);
}

namespace {

/// What a training lacks of the paper's, that a divergence which isn't seen would be refuted by.
std::string lacks(const Study& study) {
  const Run& run = study.trained.back().run;
  const nlohmann::json& paper = study.settings.at("refutable");
  const auto steps = run.training.steps();
  const double least = paper.at("share_of_steps").get<double>() * paper.at("paper_steps").get<double>();
  const std::string dtype = paper.at("dtype");
  std::string reasons;
  if (run.model.compute_dtype != dtype) reasons = run.model.compute_dtype + " instead of " + dtype;
  if (static_cast<double>(steps) < least)
    reasons += (reasons.empty() ? "" : ", ") + std::to_string(steps) + " of " +
               std::to_string(whole_number(paper, "paper_steps")) + " steps";
  if (!reasons.empty())
    reasons += "; would be decided by " + std::to_string(std::llround(least)) + " steps in " + dtype;
  return reasons;
}

}  // namespace

Conversions measure_conversions(const Study& study) {
  Conversions all(study.settings.value("confidence", kConfidence));
  all.short_of_paper = lacks(study);
  const auto evaluated_at_length = [&](const Artefact& artefact) {
    return evaluate(study, artefact, artefact.run.training.context_length);
  };
  study.each(evaluated_at_length);
  const auto blind = std::ranges::find_if(
      study.trained, [](const Artefact& artefact) { return artefact.run.label == kWithoutContext; });
  const Artefact* without_context = blind == study.trained.end() ? nullptr : &*blind;
  for (const Artefact& artefact : study.trained) {
    const Run& run = artefact.run;
    const int64_t length = run.training.context_length;
    const Evaluated found = evaluated_at_length(artefact);
    double loss = found.records.empty() ? std::numeric_limits<double>::quiet_NaN() : found.value("loss");
    const int64_t sequences = found.records.empty() ? 0 : found.records.front().batch;
    const auto record = [&](const char* metric, const char* unit, double value) {
      if (!std::isfinite(value)) return;  // absent after a divergence, which the record "diverged" reports
      all.findings.records.push_back(record_of(study.experiment, run, sequences, length, metric, unit, value));
      const MixerConfig& mixer = run.model.mixer.all().front();
      if (const int64_t rows = mixer.row().state_rows(run.model, mixer.options()); rows > 0)
        all.findings.records.back().key_dim = rows;
    };
    if (run.conversion) {
      const Course course = course_of(artefact, without_context);
      const Outcome outcome = outcome_of(course);
      if (outcome == Outcome::kNotFinite) loss = std::numeric_limits<double>::quiet_NaN();
      all.diverged[run.label].push_back(outcome != Outcome::kConverged);
      record("diverged", "1", outcome != Outcome::kConverged);
      if (outcome == Outcome::kOverflowsFloat16) record("would_overflow_float16", "1", 1);
      if (!course.losses.empty()) record("loss_at_step_0", "nats", course.losses.front());
      if (run.model.has_state()) record("largest_entry", "1", course.largest);
      all.losses.add(run, loss, std::isfinite(loss) ? losses_of_sequences(found, 0, length) : std::vector<double>());
    }
    record("loss", "nats", loss);
    record("perplexity", "1", std::exp(loss));
    for (Point& point : training_curve(run, artefact)) all.findings.points.push_back(std::move(point));
    if (std::isfinite(loss))
      for (Point& point : loss_curve(run, found)) all.findings.points.push_back(std::move(point));
  }
  return all;
}

}  // namespace lethe
