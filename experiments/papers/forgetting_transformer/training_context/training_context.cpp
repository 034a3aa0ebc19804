// Whether FoX's advantage grows with the training context: FoX and Transformer trained at two context lengths, compared by position and by context.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <stdexcept>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/json_file.hpp"
#include "experiments/listed.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::training_context {
namespace {

constexpr int64_t kParts = 16;  // of a training context T, whose ends are the bounds of the stretches

std::vector<int64_t> contexts_of(const nlohmann::json& settings) {
  return settings.at("context_lengths").get<std::vector<int64_t>>();
}

/// The losses of all rows on the same text, nats. A row's stretches are those of its own training context T.
struct Losses {
  explicit Losses(double confidence)
      : whole(confidence), early(confidence), middle(confidence), late(confidence), growth(confidence),
        fall(confidence) {}
  Measurements whole;   ///< the mean of 1 … T
  Measurements early;   ///< of 1 … T/16
  Measurements middle;  ///< of T/16 + 1 … T/4
  Measurements late;    ///< of T/2 + 1 … T
  Measurements growth;  ///< late − early
  Measurements fall;  ///< the mean of T/16 + 1 … T/8 less late: App. C's slope, positive where the last half is read
};

/// The means of `group` neighbours each, of the first `count` groups: a piece of the longest context is so many of a shorter one.
std::vector<double> joined(const std::vector<double>& values, int64_t group, int64_t count) {
  if (std::ssize(values) < group * count)
    throw std::invalid_argument("evaluation: expected the text of " + std::to_string(group * count) +
                                " pieces of the shorter context, found " + std::to_string(values.size()));
  std::vector<double> means;
  for (int64_t n = 0; n < count; ++n)
    means.push_back(mean({values.begin() + n * group, values.begin() + (n + 1) * group}));
  return means;
}

std::vector<double> difference(std::vector<double> a, const std::vector<double>& b) {
  std::ranges::transform(a, b, a.begin(), std::minus());
  return a;
}

/// Adds a run's losses on the text of `sequences` pieces of the longest context.
void add(Losses& losses, const Run& run, const Evaluated& found, int64_t longest, int64_t sequences) {
  const int64_t context = run.training.context_length, part = context / kParts;
  const auto stretch = [&](int64_t first, int64_t last) {
    return joined(losses_of_sequences(found, first, last), longest / context, sequences);
  };
  const auto early = stretch(0, part), late = stretch(context / 2, context);
  for (const auto& [measurements, values] :
       {std::pair(&losses.whole, stretch(0, context)), std::pair(&losses.early, early),
        std::pair(&losses.middle, stretch(part, 4 * part)), std::pair(&losses.late, late),
        std::pair(&losses.growth, difference(late, early)),
        std::pair(&losses.fall, difference(stretch(part, 2 * part), late))})
    measurements->add(run, mean(values), values);
}

using Terms = std::vector<Measurements::Term>;

/// The terms of `a` less those of `b`: a row that both have alike is in neither.
Terms terms_of_difference(const Terms& a, const Terms& b) {
  std::map<std::string, double> weights;
  for (const auto& [row, weight] : a) weights[row] += weight;
  for (const auto& [row, weight] : b) weights[row] -= weight;
  Terms terms;
  for (const auto& [row, weight] : weights)
    if (weight != 0) terms.push_back({row, weight});
  return terms;
}

/// "less that of Window of 512 tokens it is 0.042 ± 0.089 over the seeds of both"
std::string less_the_control(const std::string& blind, const Comparison& difference) {
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "%.3f ± %.3f", difference.measured, difference.band);
  return "less that of " + blind + " it is " + numbers + " over the seeds of both";
}

/// A statement beside the same number of the window, which is blind beyond its reach; open until the window has run. Where it holds by itself, the
/// number less the window's has to be positive outside the band of that difference, whatever the verdict on the window's own number.
Comparison with_control(const Measurements& losses, const std::string& statement, const std::string& blind,
                        const std::function<Terms(const std::string& row)>& terms, const std::string& fox) {
  const auto positive = Expectation::positive();
  Comparison comparison = losses.compare(statement, terms(fox), positive);
  const Comparison control = losses.compare("", terms(blind), positive);
  if (!control.absent_row.empty()) {
    if (comparison.absent_row.empty()) {
      comparison.absent_row = control.absent_row;
      comparison.out_of_reach = control.out_of_reach;
    }
    return comparison;
  }
  comparison.control = Control{blind, control.measured, control.band};
  const Terms beyond_the_window = terms_of_difference(terms(fox), terms(blind));
  if (beyond_the_window.empty() || judge(positive, comparison.measured, comparison.band) != Verdict::kTrendReproduced)
    return comparison;
  const Comparison difference = losses.compare("", beyond_the_window, positive);
  if (difference.verdict() != Verdict::kTrendReproduced) {
    comparison.open = difference.open.empty() ? less_the_control(blind, difference) : difference.open;
    if (difference.measured <= 0) comparison.open += ": with these means no number of runs would decide it";
    else if (const std::string lacks = difference.lacks(); !lacks.empty()) comparison.open += "; that " + lacks;
  } else if (comparison.control_does_as_well()) {  // by its own number, which doesn't decide here
    comparison.control.reset();
    comparison.note = less_the_control(blind, difference);
  }
  return comparison;
}

std::vector<Comparison> statements(const Losses& losses, const nlohmann::json& settings) {
  const auto contexts = contexts_of(settings);
  const int64_t shortest = contexts.front(), longest = contexts.back(), part = longest / kParts;
  const std::string blind = blind_row(settings).name, first = std::to_string(part),
                    last_half = " in the last half of a context of " + std::to_string(longest),
                    of_context = " of a context of " + std::to_string(longest);
  const auto positive = Expectation::positive();
  std::vector<Comparison> all;
  const auto state = [&](Comparison comparison, const char* source, bool headline = false) {
    comparison.source = source;
    comparison.headline = headline;
    all.push_back(std::move(comparison));
  };
  const auto beside_the_window = [&](const Measurements& of, const std::string& statement,
                                     const std::function<Terms(const std::string& row)>& terms,
                                     const std::string& fox) {
    Comparison comparison = with_control(of, statement, blind, terms, fox);
    comparison.note = all_notes({comparison.note, settings.value("control_after_a_run", "")});
    return comparison;
  };
  for (const char* architecture : {"LLaMA", "Pro"}) {
    const std::string fox = std::string("FoX (") + architecture + ")",
                      transformer = std::string("Transformer (") + architecture + ")";
    const auto better = [&](const Measurements& of, const std::string& where) {
      return of.compare(fox + " is better than " + transformer + where,
                        {{row_at(transformer, longest), 1}, {row_at(fox, longest), -1}}, positive);
    };
    const auto at_longest = [&](const std::string& row) -> Terms {
      return {{row_at(transformer, longest), 1}, {row_at(row, longest), -1}};
    };
    const auto more_at_longest = [&](const std::string& row) -> Terms {
      return {{row_at(transformer, longest), 1},
              {row_at(row, longest), -1},
              {row_at(transformer, shortest), -1},
              {row_at(row, shortest), 1}};
    };
    state(better(losses.late, last_half), "FoX Fig. 2 and Section 4.2", true);
    state(better(losses.early, " in the first " + first + " tokens" + of_context), "FoX Fig. 2");
    state(better(losses.middle,
                 " in the tokens " + std::to_string(part + 1) + " to " + std::to_string(4 * part) + of_context),
          "FoX Fig. 2");
    // growth is late − early, so Transformer's less FoX's is the advantage late less the advantage early.
    state(beside_the_window(
              losses.growth,
              "The advantage of " + fox + " is larger" + last_half + " than in its first " + first + " tokens",
              at_longest, fox),
          "ours, on FoX Fig. 2");
    Comparison by_context = beside_the_window(losses.whole,
                                              "The advantage of " + fox + " is larger with a training context of " +
                                                  std::to_string(longest) + " than of " + std::to_string(shortest),
                                              more_at_longest, fox);
    if (contexts.size() < 2) by_context.out_of_reach = "this scale has one training context";
    state(by_context, "FoX App. E.3, which has none at 2048", true);
  }
  for (const std::string& row : kNoiseRows) {
    const std::string falls = "L(i) of " + row + " falls from " + first + " … " + std::to_string(2 * part) +
                              " to the last half of " + std::to_string(longest) + " tokens";
    state(losses.fall.compare(falls, {{row_at(row, longest), 1}}, positive), "FoX App. C");
    state(losses.fall.compare(falls + " by more than that of " + blind,
                              {{row_at(row, longest), 1}, {row_at(blind, longest), -1}}, positive),
          "FoX App. C and Fig. 2", row.starts_with("FoX"));
  }
  for (const char* row : {"FoX (LLaMA)", "Transformer (LLaMA)"})
    state(losses.late.compare(std::string(row) + " is better than " + blind + last_half,
                              {{row_at(blind, longest), 1}, {row_at(row, longest), -1}}, positive),
          "FoX App. E.5 and Fig. 13");
  if (const std::string reason = settings.value("contexts_out_of_reach", ""); !reason.empty())
    for (Comparison& comparison : all) comparison.out_of_reach = reason;
  return all;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs;
  const auto add = [&](Row row, const nlohmann::json& sized, int64_t usual) {
    const int64_t context = sized.at("training").at("context_length"),
                  seeds = seeds_at(settings, row.name, context, usual);
    row.name = row_at(row.name, context);
    std::ranges::copy(runs_of(row, sized, vocabulary, seeds), std::back_inserter(runs));
  };
  for (const int64_t context : contexts_of(settings)) {
    nlohmann::json sized = settings;
    sized["training"]["context_length"] = context;
    for (const std::string& name : kNoiseRows)
      add(table_3_row(name), sized, seeds_of(settings, name, whole_number(settings, "seeds")));
    add(blind_row(settings), sized, seeds_of(settings, "control", 1));
  }
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  const int64_t longest = contexts_of(study.settings).back(),
                sequences = whole_number(study.settings.at("evaluation"), "sequences");
  Losses losses(study.settings.value("confidence", kConfidence));
  study.each([&](const Artefact& model) {
    const Run& run = model.run;
    const int64_t context = run.training.context_length;
    const Evaluated found =
        context == longest ? evaluate(study, model, context, sequences) : evaluate(study, model, context);
    add(losses, run, found, longest, sequences);
    for (const auto& [metric, of] : {std::pair("loss", &losses.whole), std::pair("early_loss", &losses.early),
                                     std::pair("middle_loss", &losses.middle), std::pair("late_loss", &losses.late),
                                     std::pair("fall", &losses.fall)})
      findings.records.push_back(record_of(study.experiment, run, 1, context, metric, "nats", of->value_of(run)));
    std::ranges::copy(loss_curve(run, found), std::back_inserter(findings.points));
  });
  findings.comparisons = statements(losses, study.settings);
  return findings;
}

}  // namespace lethe::training_context
