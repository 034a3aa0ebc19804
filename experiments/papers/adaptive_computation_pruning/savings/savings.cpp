// ACP Fig. 2: the pruned share of attention at several context lengths, and the time that it saves in the operator and in a
// whole training step, timed with and without pruning in alternation.

#include <torch/cuda.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include "experiments/claims/measures.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"
#include "optimized/torch/forgetting_attention.hpp"

namespace lethe::savings {
namespace {

const std::string kWith = "FoX (Pro) with ACP", kWithout = "FoX (Pro) without ACP";

/// Seconds of one call, including the work that it launched on GPUs.
template <typename Work>
double seconds(Work& work) {
  const auto wait = [] {
    if (torch::cuda::is_available()) torch::cuda::synchronize();
  };
  wait();
  const auto start = std::chrono::steady_clock::now();
  work();
  wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Two rivals, timed in turn.
struct Duel {
  std::vector<double> without, with;  ///< seconds
  std::vector<double> speedup() const {
    std::vector<double> ratios;
    for (size_t i = 0; i < with.size(); ++i) ratios.push_back(without[i] / with[i]);
    return ratios;
  }
};

/// Times both in turn, with the first of each pair alternating, after one call of each that isn't counted.
template <typename Without, typename With>
Duel duel(int64_t repetitions, Without&& without, With&& with) {
  Duel times;
  without();
  with();
  for (int64_t i = 0; i < repetitions; ++i) {
    if (i % 2 == 0) times.without.push_back(seconds(without));
    times.with.push_back(seconds(with));
    if (i % 2 == 1) times.without.push_back(seconds(without));
  }
  return times;
}

/// Forward and backward of all layers' attention, on their traced inputs of one sequence.
void attend(const std::vector<AttentionTrace>& layers, std::optional<double> log_tolerance) {
  for (const AttentionTrace& layer : layers) {
    const auto input = [](const torch::Tensor& tensor) { return tensor.detach().requires_grad_(); };
    const auto query = input(layer.query), key = input(layer.key), value = input(layer.value),
               log_forget = input(layer.log_forget);
    const auto values =
        forgetting_attention(query, key, value, log_forget, std::nullopt, log_tolerance, layer.logit_bound);
    values.sum().backward();
  }
}

/// A training step that leaves the weights unchanged: forward, backward, clipping and AdamW at rate 0.
class Step {
 public:
  Step(LanguageModel model, const Dataset::Batch& batch)
      : model_(std::move(model)), batch_{batch.tokens.to(model_->device()), batch.labels.to(model_->device())},
        optimizer_(model_->parameters(), torch::optim::AdamWOptions(0.0)) {
    model_->train();
  }
  void operator()() {
    optimizer_.zero_grad();
    model_->losses(batch_.tokens, batch_.labels).mean().backward();
    torch::nn::utils::clip_grad_norm_(model_->parameters(), 1.0);
    optimizer_.step();
  }

 private:
  LanguageModel model_;
  Dataset::Batch batch_;
  torch::optim::AdamW optimizer_;
};

/// The sequences of a timed training step.
int64_t sequences_a_step(const Run& run) {
  return std::max<int64_t>(1, run.training.micro_batch_tokens / run.training.context_length);
}

/// Half width of the 95 % interval of a median of ratios: a median scatters 1.25 times as much as a mean.
double band_of_median(const std::vector<double>& ratios) { return 1.25 * band_of_mean(ratios); }

/// The findings at one context length.
struct AtLength {
  int64_t length = 0;
  std::vector<double> pruned = {};                               ///< share of the pairs with D_ij < δ, by sequence
  std::vector<double> operator_speedup = {}, step_speedup = {};  ///< by repetition
};

/// The comparisons on the largest context and on the growth from the smallest to the largest.
std::vector<Comparison> comparisons_of_lengths(const Study& study, const AtLength& shortest, const AtLength& longest) {
  const double share = paper_value(study, kWith, "pruned_share");
  const double gain_low = paper_value(study, "all", "training_step_gain_low");
  const double gain_high = paper_value(study, "all", "training_step_gain_high");
  const std::string at = " at a context of " + std::to_string(longest.length);
  const auto gain = [](const std::vector<double>& speedup) { return median(speedup) - 1; };
  const auto together = [](double a, double b) { return std::hypot(a, b); };
  return {
      {.statement = "About 70 % of the attention's pairs are pruned" + at,
       .source = "ACP Fig. 2 left",
       .unit = "share",
       .headline = true,
       .expectation = Expectation::between(share - 0.1, share + 0.1),
       .paper = share,
       .measured = mean(longest.pruned),
       .band = band_of_mean(longest.pruned)},
      {.statement = "A longer context is pruned more",
       .source = "ACP Section 4.2",
       .unit = "share",
       .expectation = Expectation::positive(),
       .measured = mean(longest.pruned) - mean(shortest.pruned),
       .band = together(band_of_mean(longest.pruned), band_of_mean(shortest.pruned))},
      {.statement = "A training step is 10 % to 35 % faster" + at,
       .source = "ACP Fig. 2 right",
       .unit = "gain in throughput",
       .headline = true,
       .expectation = Expectation::between(gain_low, gain_high),
       .measured = gain(longest.step_speedup),
       .band = band_of_median(longest.step_speedup)},
      {.statement = "The training step gains more from a longer context",
       .source = "ACP Section 4.2",
       .unit = "gain in throughput",
       .expectation = Expectation::positive(),
       .measured = gain(longest.step_speedup) - gain(shortest.step_speedup),
       .band = together(band_of_median(longest.step_speedup), band_of_median(shortest.step_speedup))},
      {.statement = "The operator alone gains more than the training step" + at,
       .source = "ACP Section 4.2",
       .unit = "gain in throughput",
       .headline = true,
       .expectation = Expectation::positive(),
       .measured = gain(longest.operator_speedup) - gain(longest.step_speedup),
       .band = together(band_of_median(longest.operator_speedup), band_of_median(longest.step_speedup))},
  };
}

/// The times of attention and of a training step, with and without pruning, in seconds.
nlohmann::json measured_times(LanguageModel& model, const Run& run, const Dataset& dataset, int64_t repetitions) {
  const auto tolerance = run.model.mixer.only<AttentionConfig>().log_pruning_tolerance;
  const int64_t length = run.training.context_length, batch = sequences_a_step(run);
  const auto trace = traced(model, dataset, length, 0);
  const Duel attention = duel(
      repetitions, [&] { attend(trace, std::nullopt); }, [&] { attend(trace, tolerance); });
  Step without(with_tolerance(model, std::nullopt), dataset.sequences("valid", 0, batch, length));
  Step with(with_tolerance(model, tolerance), dataset.sequences("valid", 0, batch, length));
  const Duel step = duel(repetitions, without, with);
  return {{"operator", {{"without", attention.without}, {"with", attention.with}}},
          {"training_step", {{"without", step.without}, {"with", step.with}}}};
}

/// Times and counts at one context length, added to the records too.
AtLength measure_length(const Study& study, const Artefact& trained, std::vector<Record>& records) {
  const nlohmann::json& evaluation = study.settings.at("evaluation");
  const Run& run = trained.run;
  const int64_t length = run.training.context_length, repetitions = evaluation.at("repetitions");
  const auto add = [&](const std::string& variant, const char* metric, const char* unit,
                       const std::vector<double>& values, double value) {
    Record record = record_of(study.experiment, run, 1, length, metric, unit, value);
    record.variant = variant;
    record.stddev = band_of_mean(values) / 1.96 * std::sqrt(static_cast<double>(values.size()));
    record.samples = static_cast<int64_t>(values.size());
    records.push_back(record);
  };

  const auto tolerance = run.model.mixer.only<AttentionConfig>().log_pruning_tolerance;
  const Pruned shares = pruned(study, trained, tolerance, evaluation.at("sequences"));
  add(run.label, "pruned_share", "1", shares.blocks, mean(shares.blocks));
  add(run.label, "pruned_share", "1", shares.entries, mean(shares.entries));
  records.back().implementation = "single pairs";

  const auto times =
      study.measured(trained, {"times_of_pruning"}, {{"repetitions", repetitions}},
                     [&](LanguageModel& model) { return measured_times(model, run, study.dataset, repetitions); });
  const auto speedup = [&](const std::string& metric, int64_t sequences_a_call) {
    const Duel duel{times.at(metric).at("without"), times.at(metric).at("with")};
    for (const auto& [variant, seconds] : {std::pair(kWithout, duel.without), std::pair(kWith, duel.with)}) {
      add(variant, (metric + "_time").c_str(), "s", seconds, median(seconds));
      records.back().batch = sequences_a_call;
    }
    add(kWith, (metric + "_speedup").c_str(), "1", duel.speedup(), median(duel.speedup()));
    records.back().batch = sequences_a_call;
    return duel.speedup();
  };
  AtLength found{.length = length, .pruned = shares.entries};
  found.operator_speedup = speedup("operator", 1);
  found.step_speedup = speedup("training_step", sequences_a_step(run));
  return found;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  const auto lengths = settings.at("context_lengths").get<std::vector<int64_t>>();
  std::vector<Run> runs;
  for (const int64_t length : lengths)
    runs.push_back(pruning_run(settings, vocabulary, length, settings.at("log_tolerance").get<double>()));
  runs.push_back(pruning_run(settings, vocabulary, lengths.back(), std::nullopt));
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  std::vector<AtLength> lengths;
  std::map<std::string, double> losses;  // at the longest context, by label
  study.each([&](const Artefact& trained) {
    const Run& run = trained.run;
    const int64_t length = run.training.context_length;
    if (run.label == kWith) lengths.push_back(measure_length(study, trained, findings.records));
    if (length != study.settings.at("context_lengths").back()) return;
    // Both train on the same text in the same order from the same initial weights.
    const Evaluated found = evaluate(study, trained, length, study.settings.at("evaluation").at("sequences"));
    losses[run.label] = found.value("loss");
    findings.records.push_back(record_of(study.experiment, run, 1, length, "loss", "nats", losses[run.label]));
    for (auto&& points : {training_curve(run, trained), loss_curve(run, found)})
      findings.points.insert(findings.points.end(), points.begin(), points.end());
  });
  findings.comparisons = comparisons_of_lengths(study, lengths.front(), lengths.back());
  findings.comparisons.push_back({.statement = "Training with pruning ends at the same loss as training without",
                                  .source = "ACP Fig. 3 left",
                                  .unit = "nats",
                                  .headline = true,
                                  .expectation = Expectation::within(study.settings.at("no_effect_margin")),
                                  .paper = 0,
                                  .measured = losses.at(kWith) - losses.at(kWithout)});
  return findings;
}

}  // namespace lethe::savings
