// ACP Fig. 2: the pruned share of attention at several context lengths, and the time that it saves in the operator and in a
// whole training step, timed with and without pruning in alternation.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <stdexcept>

#include "experiments/claims/deciding.hpp"
#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/json_file.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"
#include "experiments/papers/adaptive_computation_pruning/savings/duel.hpp"
#include "experiments/papers/adaptive_computation_pruning/savings/times.hpp"

namespace lethe::savings {
namespace {

const std::string kWith = "FoX (Pro) with ACP", kWithout = "FoX (Pro) without ACP";
constexpr int64_t kShortestWithFalls = 4096;  ///< contexts of which L(i) is asked to fall

/// Half width of the interval of a median of ratios: a median scatters 1.25 times as much as a mean.
double band_of_median(const std::vector<double>& ratios, double confidence) {
  return 1.25 * band_of_mean(ratios, confidence);
}

std::string at(int64_t length) { return "context " + std::to_string(length); }

/// The findings of all runs with pruning.
struct Found {
  explicit Found(double confidence)
      : confidence(confidence), shares(confidence), untrained(confidence), losses(confidence), falls(confidence),
        of_positions(4, Measurements(confidence)) {}
  double confidence;
  Measurements shares, untrained;  ///< of the blocks, by at(length)
  Measurements losses;             ///< at the longest context, by label
  Measurements falls;              ///< there: the mean of L(i) over T/16 … T/8 less that over T/2 … T, by label
  std::vector<Measurements> of_positions;         ///< there: the loss of positions to T/8, T/4, T/2 and T, by label
  std::map<int64_t, Measurements> losses_before;  ///< at each context but the longest, by label
  std::map<int64_t, std::vector<double>> operator_speedup, step_speedup;  ///< of seed 0, by repetition
};

/// A difference of two medians, less 1 each where it is a gain.
struct Gain {
  double value, band;
};
/// NaN without a run at that context.
Gain gain(const std::map<int64_t, std::vector<double>>& speedups, int64_t length, double confidence) {
  const auto found = speedups.find(length);
  if (found == speedups.end()) return {std::nan(""), std::nan("")};
  return {median(found->second) - 1, band_of_median(found->second, confidence)};
}
Gain operator-(const Gain& a, const Gain& b) { return {a.value - b.value, std::hypot(a.band, b.band)}; }

/// A statement on shares of the blocks, beside the same of the untrained models; open where a context has not run.
Comparison of_shares(const Found& found, const std::string& statement, const std::vector<Measurements::Term>& terms,
                     const Expectation& expectation, const char* source) {
  Comparison comparison = found.shares.compare(statement, terms, expectation);
  const Comparison before = found.untrained.compare("", terms, expectation);
  comparison.control = Control{"untrained", before.measured, before.band};
  comparison.unit = "share of the blocks";
  comparison.source = source;
  return comparison;
}

/// A share is never below zero: it has a range and no direction, which every share would have.
Comparison share_at(const Study& study, const Found& found, int64_t length) {
  const double share = paper_value(study, kWith, "pruned_share");
  Comparison comparison =
      of_shares(found, "About 70 % of the attention's blocks are pruned at a context of " + std::to_string(length),
                {{at(length), 1}}, {.low = share - 0.1, .high = share + 0.1}, "ACP Fig. 2 left");
  comparison.paper = share;
  comparison.note = study.settings.value("share_after_a_run", "");
  return comparison;
}

Comparison of_times(const std::string& statement, const Gain& measured, const Expectation& expectation,
                    const char* source) {
  Comparison made{.statement = statement,
                  .source = source,
                  .unit = "gain in throughput",
                  .expectation = expectation,
                  .measured = measured.value,
                  .band = measured.band};
  made.would_decide = deciding_sample(made, measured.band, 0, "the repetitions");
  return made;
}

/// The paper gives one range for all of its lengths.
Comparison step_at(const Study& study, const Found& found, int64_t length) {
  const double low = paper_value(study, "all", "training_step_gain_low");
  const double high = paper_value(study, "all", "training_step_gain_high");
  return of_times("A training step is 10 % to 35 % faster at a context of " + std::to_string(length),
                  gain(found.step_speedup, length, found.confidence), Expectation::between(low, high),
                  "ACP Fig. 2 right");
}

Comparison equal_losses(const Study& study, const Measurements& losses, const std::string& statement) {
  Comparison equal = losses.compare(statement, {{kWith, 1}, {kWithout, -1}},
                                    Expectation::within(study.settings.at("no_effect_margin")));
  equal.source = "ACP Fig. 3 left";
  equal.paper = 0;
  if (equal.out_of_reach.empty() && std::ranges::count(losses.by_seed({{kWith, 1}, {kWithout, -1}}), 0.0) > 0)
    equal.open = "runs with and without pruning are equal to the last bit";
  return equal;
}

Comparison operator_at(const Found& found, int64_t length) {
  return of_times(
      "The operator alone gains more than the training step at a context of " + std::to_string(length),
      gain(found.operator_speedup, length, found.confidence) - gain(found.step_speedup, length, found.confidence),
      Expectation::positive(), "ACP Section 4.2");
}

void keep_open_without_its_context(Comparison& comparison) {
  if (!std::isnan(comparison.measured)) return;
  comparison.out_of_reach.clear();
  comparison.control.reset();
  comparison.open = "one of its contexts has not run yet";
}

/// The statements on trained gates: on the longest context, and on the growth from the shortest to it.
std::vector<Comparison> comparisons_of_lengths(const Study& study, const Found& found) {
  const auto lengths = study.settings.at("context_lengths").get<std::vector<int64_t>>();
  const int64_t shortest = lengths.front(), longest = lengths.back();
  const Gain step = gain(found.step_speedup, longest, found.confidence),
             early = gain(found.step_speedup, shortest, found.confidence);
  std::vector<Comparison> all = {
      share_at(study, found, longest),
      of_shares(found, "A longer context is pruned more", {{at(longest), 1}, {at(shortest), -1}},
                Expectation::positive(), "ACP Section 4.2"),
      step_at(study, found, longest),
      of_times("The training step gains more from a longer context", step - early, Expectation::positive(),
               "ACP Section 4.2"),
      operator_at(found, longest)};
  for (const size_t headline : {0, 2, 4}) all[headline].headline = true;
  if (lengths.size() < 2)
    for (const size_t growth : {1, 3}) all[growth].open = "this scale has one context length";
  for (Comparison& comparison : all) keep_open_without_its_context(comparison);
  Comparison equal =
      equal_losses(study, found.losses, "Training with pruning ends at the same loss as training without");
  equal.headline = true;
  equal.note = study.settings.value("seeds_after_a_run", "");
  all.push_back(equal);
  std::vector<Comparison> stretches;
  for (const Measurements& losses : found.of_positions)
    stretches.push_back(
        losses.compare("Pruning changes the loss at no position, of four stretches the one that differs most",
                       {{kWith, 1}, {kWithout, -1}}, equal.expectation));
  Comparison everywhere =
      *std::ranges::max_element(stretches, {}, [](const Comparison& one) { return std::abs(one.measured) + one.band; });
  everywhere.source = equal.source;
  everywhere.paper = 0;
  everywhere.open = equal.open;
  everywhere.note = study.settings.value("written_after_a_run", "");
  all.push_back(everywhere);
  return all;
}

std::vector<Artefact> with_pruning_at(const Study& study, int64_t length) {
  std::vector<Artefact> models = study.labelled(kWith);
  std::erase_if(models, [&](const Artefact& model) { return model.run.training.context_length != length; });
  return models;
}

/// The shares and the times at the contexts before the longest, each judged by the gates of its own models.
std::vector<Comparison> before_the_longest(const Study& study, const Found& found, int64_t sequences) {
  auto lengths = study.settings.at("context_lengths").get<std::vector<int64_t>>();
  lengths.pop_back();
  std::vector<Comparison> all;
  for (const int64_t length : lengths) {
    std::vector<Comparison> at_length{share_at(study, found, length), step_at(study, found, length),
                                      operator_at(found, length)};
    if (const auto losses = found.losses_before.find(length); losses != found.losses_before.end())
      at_length.push_back(equal_losses(
          study, losses->second,
          "Training with pruning ends at the same loss as training without at a context of " + std::to_string(length)));
    for (Comparison& one : at_length) {
      one.note = study.settings.value("written_after_a_run", "");
      keep_open_without_its_context(one);
    }
    if (const auto models = with_pruning_at(study, length); !models.empty())
      judge_by_gates(at_length, gates_opened(study, models, sequences), study.settings);
    std::ranges::copy(at_length, std::back_inserter(all));
  }
  return all;
}

/// Whether models of the longest context use it. Not of the paper.
std::vector<Comparison> falls_of_losses(const Found& found, int64_t longest) {
  std::vector<Comparison> all;
  for (const std::string& label : {kWithout, kWith}) {
    Comparison fall = found.falls.compare("L(i) of " + label + " falls from " + std::to_string(longest / 16) + " … " +
                                              std::to_string(longest / 8) + " to the last half of " +
                                              std::to_string(longest) + " tokens",
                                          {{label, 1}}, Expectation::positive());
    fall.source = "FoX App. C, for longer contexts";
    fall.note = "written after the run of scale gpu";
    all.push_back(fall);
  }
  return all;
}

/// The share of a model's forward FLOPs that is its attention, two products of T/2 keys a query, a multiply-add counted as two.
double attention_share(int64_t length) {
  ModelConfig model = named_architecture("fox-pro");
  set_size(model, "760m");
  const double attention = 2.0 * static_cast<double>(model.layers * length * model.width);
  const double products = 2.0 * static_cast<double>(count_parameters(model).non_embedding);
  return attention / (attention + products);
}

/// The paper's shares of attention in a model's FLOPs: arithmetic, at every scale.
std::vector<Comparison> shares_of_flops(const Study& study) {
  std::vector<Comparison> all;
  for (const auto& [number, source, _] : study.paper)
    if (number.metric == "attention_share_of_flops")
      all.push_back({.statement = "Attention is that share of a 760M model's FLOPs at a context of " +
                                  std::to_string(number.length),
                     .source = "ACP Section 4.2",
                     .unit = "share",
                     .expectation = {.low = number.value - 0.02, .high = number.value + 0.02},
                     .paper = number.value,
                     .measured = attention_share(number.length)});
  return all;
}

/// Times and counts of one run with pruning, added to the records too. Times are those of seed 0.
void measure_length(const Study& study, const Artefact& trained, Found& found, std::vector<Record>& records) {
  const nlohmann::json& evaluation = study.settings.at("evaluation");
  const Run& run = trained.run;
  const int64_t length = run.training.context_length, repetitions = evaluation.at("repetitions");
  const auto add = [&](const std::string& variant, const char* implementation, const std::string& metric,
                       const char* unit, const std::vector<double>& values, double value) {
    Record record = record_of(study.experiment, run, 1, length, metric, unit, value);
    record.variant = variant;
    record.artefact = trained.folder.filename();  // times without pruning are of this model, too
    record.implementation = implementation;
    record.stddev = values.size() < 2 ? 0 : deviation(values);
    record.samples = static_cast<int64_t>(values.size());
    records.push_back(record);
  };

  const auto tolerance = run.model.mixer.only<AttentionConfig>().log_pruning_tolerance;
  const Pruned after = pruned(study, trained, tolerance, evaluation.at("sequences")),
               before = pruned(study, trained, tolerance, evaluation.at("sequences"), Moment::kBeforeTraining);
  found.shares.add(at(length), run.training.seed, mean(after.blocks), after.blocks);
  found.untrained.add(at(length), run.training.seed, mean(before.blocks), before.blocks);
  if (const auto losses = found.losses_before.find(length); losses != found.losses_before.end()) {
    losses->second.add(run, after.loss(), after.losses);
    records.push_back(record_of(study.experiment, run, 1, length, "loss", "nats", after.loss()));
  }
  add(run.label, "lethe", "pruned_share", "1", after.blocks, mean(after.blocks));
  add(run.label, "single pairs", "pruned_share", "1", after.entries, mean(after.entries));
  add(run.label, "lethe", "pruned_share_untrained", "1", before.blocks, mean(before.blocks));
  add(run.label, "single pairs", "pruned_share_untrained", "1", before.entries, mean(before.entries));
  if (run.training.seed != 0) return;

  const auto times =
      study.measured(trained, {"times_of_pruning"}, {{"repetitions", repetitions}},
                     [&](LanguageModel& model) { return measured_times(model, run, study.dataset, repetitions); });
  const auto speedup = [&](const std::string& metric, int64_t sequences_a_call) {
    const Duel duel{times.at(metric).at("without"), times.at(metric).at("with")};
    for (const auto& [variant, seconds] : {std::pair(kWithout, duel.without), std::pair(kWith, duel.with)}) {
      add(variant, "lethe", metric + "_time", "s", seconds, median(seconds));
      records.back().batch = sequences_a_call;
    }
    add(kWith, "lethe", metric + "_speedup", "1", duel.speedup(), median(duel.speedup()));
    records.back().batch = sequences_a_call;
    return duel.speedup();
  };
  found.operator_speedup[length] = speedup("operator", 1);
  found.step_speedup[length] = speedup("training_step", sequences_a_step(run));
}

/// The loss of one run without pruning at a context before the longest, on the sequences that pruned() reads of those with it: the first of the text
/// that the ablations evaluate the same model on.
void add_without(const Study& study, const Artefact& trained, Found& found, std::vector<Record>& records,
                 int64_t sequences) {
  const Run& run = trained.run;
  const int64_t length = run.training.context_length;
  std::vector<double> losses = losses_of_sequences(evaluate(study, trained, length), 0, length);
  if (std::ssize(losses) < sequences)
    throw std::invalid_argument("evaluation: expected a text of " + std::to_string(sequences) +
                                " sequences or more, found " + std::to_string(losses.size()));
  losses.resize(static_cast<size_t>(sequences));
  found.losses_before.at(length).add(run, mean(losses), losses);
  records.push_back(record_of(study.experiment, run, 1, length, "loss", "nats", mean(losses)));
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  const auto lengths = settings.at("context_lengths").get<std::vector<int64_t>>();
  const auto usual = whole_number(settings, "seeds");
  std::vector<Run> runs;
  const auto add = [&](int64_t length, std::optional<double> tolerance, const std::string& label, int64_t otherwise) {
    for (int64_t seed = 0; seed < seeds_at(settings, label, length, otherwise); ++seed)
      runs.push_back(pruning_run(settings, vocabulary, length, tolerance, static_cast<uint64_t>(seed)));
  };
  for (const int64_t length : lengths) {
    add(length, settings.at("log_tolerance").get<double>(), kWith, seeds_of(settings, kWith, usual));
    add(length, std::nullopt, kWithout, length == lengths.back() ? seeds_of(settings, kWithout, usual) : 0);
  }
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  Found found(study.settings.value("confidence", kConfidence));
  const int64_t longest = study.settings.at("context_lengths").back(),
                sequences = study.settings.at("evaluation").at("sequences");
  for (const int64_t length : study.settings.at("context_lengths").get<std::vector<int64_t>>())
    if (length != longest && seeds_at(study.settings, kWithout, length, 0) > 0)
      found.losses_before.emplace(length, Measurements(found.confidence));
  study.each([&](const Artefact& trained) {
    const Run& run = trained.run;
    const int64_t length = run.training.context_length;
    if (run.label == kWith) measure_length(study, trained, found, findings.records);
    if (length != longest) {
      if (run.label == kWithout) add_without(study, trained, found, findings.records, sequences);
      return;
    }
    // Of one seed both read the same text in the same order from the same initial weights.
    const Evaluated evaluated = evaluate(study, trained, length, sequences);
    found.losses.add(run, evaluated.value("loss"), losses_of_sequences(evaluated, 0, length));
    std::vector<double> fall = losses_of_sequences(evaluated, length / 16, length / 8);
    const std::vector<double> late = losses_of_sequences(evaluated, length / 2, length);
    for (size_t s = 0; s < fall.size(); ++s) fall[s] -= late[s];
    found.falls.add(run, mean(fall), fall);
    int64_t begin = 0;
    for (Measurements& losses : found.of_positions) {
      const int64_t end = begin == 0 ? length / 8 : 2 * begin;
      const std::vector<double> stretch = losses_of_sequences(evaluated, begin, end);
      losses.add(run, mean(stretch), stretch);
      begin = end;
    }
    findings.records.push_back(record_of(study.experiment, run, 1, length, "loss", "nats", evaluated.value("loss")));
    for (auto&& points : {training_curve(run, trained), loss_curve(run, evaluated)})
      findings.points.insert(findings.points.end(), points.begin(), points.end());
  });
  findings.comparisons = comparisons_of_lengths(study, found);
  if (const auto models = with_pruning_at(study, longest); !models.empty()) {
    Comparison opened = gates_opened(study, models, sequences);
    opened.headline = true;
    judge_by_gates(findings.comparisons, opened, study.settings);
    opened.out_of_reach = study.settings.value("gates_out_of_reach", "");
    findings.comparisons.push_back(opened);
  }
  std::ranges::copy(before_the_longest(study, found, sequences), std::back_inserter(findings.comparisons));
  if (longest >= kShortestWithFalls)
    std::ranges::copy(falls_of_losses(found, longest), std::back_inserter(findings.comparisons));
  std::ranges::copy(shares_of_flops(study), std::back_inserter(findings.comparisons));
  return findings;
}

}  // namespace lethe::savings
