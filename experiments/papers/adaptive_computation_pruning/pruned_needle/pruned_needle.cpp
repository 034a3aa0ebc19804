// ACP Fig. 3 right and Fig. 9: the needle in a haystack with and without pruning, the same weights asked twice.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>

#include "experiments/claims/deciding.hpp"
#include "experiments/claims/measures.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/json_file.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

namespace lethe::pruned_needle {
namespace {

constexpr const char* kGain = "gain_at_length_and_depth";
constexpr double kMostSavedByMass = 0.25;  ///< share of the blocks left

std::string in_percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

/// The answers of one model.
struct Answers {
  Evaluated without, with;  ///< of the evaluation needle, without pruning and with the tolerance of the training
  std::map<int64_t, double> skipped;  ///< share of the blocks that the tolerance skips, by the length of the text
  std::map<int64_t, double> skipped_by_mass;  ///< the same with the boundary by mass, which the paper doesn't have
};

/// The evaluation needle of a model with another tolerance: its records, and the gain of each prompt.
nlohmann::json answers_with(const LanguageModel& model, std::optional<double> log_tolerance, const Study& study) {
  LanguageModel changed = with_tolerance(model, log_tolerance);
  const auto check = [&](double) {
    if (study.check) study.check();
  };
  Evaluated found = evaluation_named("needle").run(changed, study.dataset, study.settings.at("needle"), check);
  std::erase_if(found.points, [](const Point& point) { return point.quantity != kGain; });
  return json_of(found);
}

/// Shares of the blocks that the model's own tolerance skips in texts of each prompt's length, of the split of the haystacks: [length, share].
nlohmann::json skipped_blocks(LanguageModel& model, const Study& study) {
  nlohmann::json shares = nlohmann::json::array();
  for (const int64_t length : study.settings.at("needle").at("lengths"))
    shares.push_back(
        {length, mean(over_heads(head_shares(model, study.dataset, length, 1, "test"), &HeadShare::blocks))});
  return shares;
}

/// Of [length, share] pairs.
std::map<int64_t, double> by_length(const nlohmann::json& shares) {
  std::map<int64_t, double> found;
  for (const nlohmann::json& pair : shares) found[pair.at(0)] = pair.at(1);
  return found;
}

Answers answers_of(const Study& study, const Artefact& model) {
  const auto tolerance = model.run.model.mixer.only<AttentionConfig>().log_pruning_tolerance;
  const nlohmann::json settings = {{"needle", study.settings.at("needle")}, {"log_tolerance", *tolerance}};
  const auto found = study.measured(model, {"pruned_needle"}, settings, [&](LanguageModel& weights) {
    LanguageModel by_mass = with_attention(weights, [](AttentionConfig& attention) { attention.prune_by_mass = true; });
    return nlohmann::json{{"without", answers_with(weights, std::nullopt, study)},
                          {"with", answers_with(weights, tolerance, study)},
                          {"skipped", skipped_blocks(weights, study)},
                          {"skipped_by_mass", skipped_blocks(by_mass, study)}};
  });
  return {evaluated_of(found.at("without")), evaluated_of(found.at("with")), by_length(found.at("skipped")),
          by_length(found.value("skipped_by_mass", nlohmann::json::array()))};  // not asked by an earlier version
}

/// What the boundary by mass saves of the blocks that the paper's leaves, over the lengths that this one prunes.
void add_savings(const Answers& answers, std::vector<double>& savings) {
  for (const auto& [length, skipped] : answers.skipped)
    if (const auto by_mass = answers.skipped_by_mass.find(length);
        skipped > 0 && by_mass != answers.skipped_by_mass.end())
      savings.push_back(1 - (1 - by_mass->second) / (1 - skipped));
}

Comparison statement_on_mass(const std::vector<double>& savings, const nlohmann::json& settings) {
  Comparison comparison{
      .statement =
          "At one tolerance the boundary by mass leaves no more blocks than the paper's, and up to a quarter fewer",
      .source = "ours",
      .unit = "share of the blocks left",
      .expectation = Expectation::between(0, kMostSavedByMass)};
  if (savings.empty()) {
    comparison.measured = comparison.band = std::numeric_limits<double>::quiet_NaN();
    comparison.open = "the tolerance skips no block";
    return comparison;
  }
  comparison.measured = mean(savings);
  comparison.band = band_of_mean(savings, settings.value("confidence", kConfidence));
  comparison.note = "over training lengths and lengths of the text: " + in_percent(*std::ranges::min_element(savings)) +
                    " to " + in_percent(*std::ranges::max_element(savings));
  return comparison;
}

/// The prompts of one side of the training length, over the models trained on it.
struct Prompts {
  std::vector<double> gains, changes;  ///< nats a token: without pruning, and what pruning adds to it
  std::vector<double> skipped;         ///< shares of the blocks, by length

  void add(const Answers& answers, bool is_within, int64_t trained) {
    const auto is_asked = [=](double length) { return (length <= static_cast<double>(trained)) == is_within; };
    for (size_t p = 0; p < answers.without.points.size(); ++p) {
      const Point &without = answers.without.points[p], &with = answers.with.points[p];
      if (!is_asked(without.x)) continue;
      gains.push_back(without.value);
      changes.push_back(with.value - without.value);
    }
    for (const auto& [length, share] : answers.skipped)
      if (is_asked(static_cast<double>(length))) skipped.push_back(share);
  }
};

Comparison statement(int64_t trained, bool is_within, const Prompts& prompts, const nlohmann::json& settings) {
  const double margin = settings.at("no_effect_margin");
  const double confidence = settings.value("confidence", kConfidence);
  Comparison comparison{.statement = "Trained on " + std::to_string(trained) +
                                     " tokens: pruning doesn't change what the needle gives " +
                                     (is_within ? "within" : "beyond") + " that length",
                        .source = trained == 16384 ? "ACP Fig. 3 right" : "ACP Fig. 9",
                        .unit = "nats a token",
                        .headline = is_within,
                        .expectation = Expectation::within(margin),
                        .paper = 0};
  if (prompts.changes.empty()) {
    comparison.measured = comparison.band = std::numeric_limits<double>::quiet_NaN();
    comparison.open = "no model of this context has been measured yet";
    return comparison;
  }
  comparison.measured = mean(prompts.changes);
  comparison.band = band_of_mean(prompts.changes, confidence);
  comparison.would_decide = deciding_sample(comparison, comparison.band, 0, "the prompts");
  if (mean(prompts.gains) - band_of_mean(prompts.gains, confidence) <= margin)
    comparison.open = "without pruning it doesn't find the needle";
  if (mean(prompts.skipped) == 0) comparison.open = "the tolerance skips no block";
  const auto changed = std::ranges::count_if(prompts.changes, [](double change) { return change != 0; });
  comparison.note =
      std::to_string(std::lround(100 * mean(prompts.skipped))) + " % of the blocks skipped, " +
      (changed == 0 ? "no prompt's answer changed by a bit"
                    : std::to_string(changed) + " of " + std::to_string(prompts.changes.size()) + " prompts changed");
  if (const std::string reason = settings.value("gates_out_of_reach", ""); !reason.empty())
    comparison.out_of_reach = reason;
  return comparison;
}

void add_records(const Study& study, const Artefact& model, const Answers& answers, Findings& findings) {
  const int64_t trained = model.run.training.context_length;
  for (const auto& [prunes, found] : {std::pair("without", &answers.without), std::pair("with", &answers.with)}) {
    const std::string variant = std::to_string(trained) + " tokens " + prunes + " pruning";
    for (Record record : records_of(study, model.run, *found)) {
      record.variant = variant;
      record.artefact = model.folder.filename();
      findings.records.push_back(record);
    }
    for (Point point : found->points) {
      point.variant = variant;
      point.seed = model.run.training.seed;
      findings.points.push_back(point);
    }
  }
  for (const auto& [implementation, shares] :
       {std::pair("", &answers.skipped), std::pair("by mass", &answers.skipped_by_mass)})
    for (const auto& [length, share] : *shares) {
      Record record = record_of(study.experiment, model.run, 1, length, "pruned_share", "1", share);
      record.variant = std::to_string(trained) + " tokens with pruning";
      if (*implementation != '\0') record.implementation = implementation;
      record.artefact = model.folder.filename();
      findings.records.push_back(record);
    }
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs;
  for (const int64_t length : settings.at("context_lengths"))
    for (int64_t seed = 0; seed < whole_number(settings, "needle_seeds"); ++seed)
      runs.push_back(pruning_run(settings, vocabulary, length, settings.at("log_tolerance").get<double>(),
                                 static_cast<uint64_t>(seed)));
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  std::map<std::pair<int64_t, bool>, Prompts> prompts;  // by training length and whether within it
  std::vector<double> savings;
  bool is_any_measured = false;
  study.each([&](const Artefact& model) {
    try {
      const Answers answers = answers_of(study, model);
      const int64_t trained = model.run.training.context_length;
      for (const bool is_within : {true, false}) prompts[{trained, is_within}].add(answers, is_within, trained);
      add_savings(answers, savings);
      add_records(study, model, answers, findings);
      is_any_measured = true;
    } catch (const NotMeasured&) {  // other claims have run some of these models before this one asked them
      if (study.is_part) throw;
    }
  });
  if (!is_any_measured) throw NotMeasured();
  const auto lengths = study.settings.at("needle").at("lengths").get<std::vector<int64_t>>();
  for (const int64_t trained : study.settings.at("context_lengths"))
    for (const bool is_within : {true, false})
      if (std::ranges::any_of(lengths, [=](int64_t length) { return (length <= trained) == is_within; }))
        findings.comparisons.push_back(statement(trained, is_within, prompts[{trained, is_within}], study.settings));
  findings.comparisons.push_back(statement_on_mass(savings, study.settings));
  return findings;
}

}  // namespace lethe::pruned_needle
