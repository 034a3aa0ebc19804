#include "experiments/papers/decaying_fast_weights/conversions.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/claims/measures.hpp"
#include "experiments/models/mixers/additive.hpp"
#include "experiments/models/mixers/decay.hpp"
#include "experiments/models/mixers/delta.hpp"
#include "experiments/models/mixers/gated.hpp"
#include "experiments/models/mixers/local.hpp"
#include "experiments/training/conversion.hpp"

namespace lethe {
namespace {

constexpr int64_t kTable1States = 4;
const std::string kSource = "Softmax before the swap";

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

// The residuals of the rows with several seeds after subtraction of row and seed means: their standard deviation, infinite without
// degrees of freedom, and their degrees of freedom.
std::pair<double, int> residual_noise(std::vector<std::vector<double>> rows) {
  std::erase_if(rows, [](const auto& values) { return values.size() < 2; });
  if (rows.size() < 2) return {std::numeric_limits<double>::infinity(), 0};
  size_t seeds = rows.front().size();
  for (const auto& values : rows) seeds = std::min(seeds, values.size());
  std::vector<double> of_seed(seeds, 0.0), of_row;
  for (auto& values : rows) {
    values.resize(seeds);
    of_row.push_back(mean(values));
    for (size_t s = 0; s < seeds; ++s) of_seed[s] += values[s] / static_cast<double>(rows.size());
  }
  double squares = 0;
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t s = 0; s < seeds; ++s) squares += std::pow(rows[r][s] - of_row[r] - of_seed[s] + mean(of_row), 2);
  const auto degrees = static_cast<int>((rows.size() - 1) * (seeds - 1));
  return {std::sqrt(squares / degrees), degrees};
}

}  // namespace

std::vector<Row> table_1() {
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
  };
}

std::vector<Row> table_2(const nlohmann::json& settings) {
  const int64_t window = settings.at("window");
  ModelConfig local = named_architecture("local");
  local.mixer.only<LocalConfig>().window = window;
  std::vector<Row> rows = {{"Softmax trained on", named_architecture("transformer-llama")},
                           {"Local attention", local},
                           {"Gated m=4", linear<GatedConfig>(kTable1States)},
                           {"Gated m=16", linear<GatedConfig>(16)},
                           {"Gated m=32", linear<GatedConfig>(32)},
                           {"Decay m=4", linear<DecayConfig>(kTable1States)},
                           {"Decay m=16", linear<DecayConfig>(16)},
                           {"Decay m=32", linear<DecayConfig>(32)}};
  // The paper's window is a thirty-second of GPT-2's context; at a short context a window of that share is added.
  const int64_t share = settings.at("training").at("context_length").get<int64_t>() / 32;
  if (share != window && share > 0) {
    local.mixer.only<LocalConfig>().window = share;
    rows.insert(rows.begin() + 2, {"Local attention of context / 32", local});
  }
  return rows;
}

bool measures_noise(const Row& row) {
  const MixerConfig& mixer = row.architecture.mixer.all().front();
  if (const auto* gated = mixer.if_own<GatedConfig>())
    return gated->state_size == kTable1States && !gated->attention_norm;
  const auto* decay = mixer.if_own<DecayConfig>();
  return decay != nullptr && decay->feature_map == FeatureMap::kLinear &&
         (decay->state_size == kTable1States || decay->state_size == 16);
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
    for (Run& run : runs_of(row, settings, vocabulary, measures_noise(row) ? settings.at("seeds").get<int64_t>() : 1)) {
      run.conversion = conversion;
      run.training.divergence_is_a_result = true;
      runs.push_back(std::move(run));
    }
  return runs;
}

Comparison Conversions::compare(const std::string& statement, const std::vector<std::pair<std::string, double>>& terms,
                                const Expectation& expectation) const {
  size_t seeds = losses.at(terms.front().first).size();
  for (const auto& [row, _] : terms) seeds = std::min(seeds, losses.at(row).size());
  double measured = 0, squares = 0;
  for (const auto& [row, weight] : terms) {
    const Seeds& values = losses.at(row);
    measured += weight * mean(Seeds(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(seeds)));
    squares += weight * weight / static_cast<double>(seeds);
  }
  std::vector<Seeds> rows;
  for (const auto& [_, values] : losses) rows.push_back(values);
  const auto [deviation, degrees] = residual_noise(rows);
  Comparison comparison;
  comparison.statement = statement;
  comparison.unit = "nats";
  comparison.expectation = expectation;
  comparison.measured = measured;
  comparison.band = degrees > 0 ? student_t(degrees) * deviation * std::sqrt(squares) : deviation;
  return comparison;
}

void Conversions::add_difference(const Study& study, const std::string& statement, const std::string& worse,
                                 const std::string& better, const Expectation& expectation, bool headline) {
  Comparison comparison = compare(statement, {{worse, 1}, {better, -1}}, expectation);
  comparison.source = study.experiment.claim == "update_rules" ? "T2FW Table 1" : "T2FW Table 2";
  comparison.headline = headline;
  comparison.paper = std::log(paper_value(study, worse, "perplexity") / paper_value(study, better, "perplexity"));
  findings.comparisons.push_back(comparison);
}

Conversions measure_conversions(const Study& study) {
  Conversions all;
  const auto evaluated_at_length = [&](const Artefact& artefact) {
    return evaluate(study, artefact, artefact.run.training.context_length);
  };
  study.each(evaluated_at_length);
  const Artefact source = study.labelled(kSource).front();
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
      const Course course = course_of(artefact, source);
      const Outcome outcome = outcome_of(course);
      if (outcome == Outcome::kNotFinite) loss = std::numeric_limits<double>::quiet_NaN();
      all.diverged[run.label].push_back(outcome != Outcome::kConverged);
      record("diverged", "1", outcome != Outcome::kConverged);
      if (outcome == Outcome::kOverflowsFloat16) record("would_overflow_float16", "1", 1);
      if (!course.losses.empty()) record("loss_at_step_0", "nats", course.losses.front());
      if (run.model.has_state()) record("largest_entry", "1", course.largest);
      all.losses[run.label].push_back(loss);
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
