// FoX Fig. 5: a data-dependent forget gate, a data-independent one, and a fixed one (ALiBi).

#include <algorithm>
#include <iterator>
#include <tuple>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/json_file.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::forget_gate_types {
namespace {

struct Architecture {
  std::string data_dependent, data_independent, fixed;  ///< the names of its rows
};

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> table = {
      {"FoX (LLaMA)", "FoX (LLaMA) with data-independent gate", "FoX (LLaMA) with fixed gate"},
      {"FoX (Pro)", "FoX (Pro) with data-independent gate", "FoX (Pro) with fixed gate"},
  };
  return table;
}

/// The loss of each run, at the training length and beyond it.
struct Losses {
  explicit Losses(double confidence) : within(confidence), beyond(confidence) {}
  Measurements within, beyond;
};

/// `row` with another kind of gate and initial decay times from settings["decay_time_min"] to `longest`.
Row with_gate(const std::string& name, Row row, ForgetGate gate, const nlohmann::json& settings, int64_t longest) {
  row.name = name;
  AttentionConfig& attention = row.architecture.mixer.only<AttentionConfig>();
  attention.forget_gate = gate;
  attention.decay_time_min = settings.at("decay_time_min");
  attention.decay_time_max = static_cast<double>(longest);
  return row;
}

/// The longest decay times beside settings["decay_time_max"]: the paper's sweep of T_max.
std::vector<int64_t> other_decay_times(const nlohmann::json& settings) {
  return settings.value("other_decay_times_max", std::vector<int64_t>());
}

/// The name of a row with another longest decay time.
std::string up_to(const std::string& row, int64_t longest) { return row + " up to " + std::to_string(longest); }

/// Statements on the rows of another T_max, with a note.
std::vector<Comparison> of_other_decay_times(const Losses& losses, int64_t longest, const std::string& note) {
  const auto positive = Expectation::positive();
  std::vector<Comparison> found;
  for (const auto& [data_dependent, data_independent, fixed] : architectures())
    for (const auto& [kind, row, where, of] :
         {std::tuple("fixed", fixed, "within", &losses.within), std::tuple("fixed", fixed, "beyond", &losses.beyond),
          std::tuple("data-independent", data_independent, "beyond", &losses.beyond)}) {
      found.push_back(of->compare(data_dependent + ": T_max " + std::to_string(longest) + " doesn't help a " + kind +
                                      " gate to the data-dependent one " + where + " the training length",
                                  {{up_to(row, longest), 1}, {data_dependent, -1}}, positive));
      found.back().source = "FoX Fig. 5 and Section 4.5";
      found.back().note = note;
    }
  return found;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<Run> runs = table_3_runs({"FoX (LLaMA)", "FoX (Pro)"}, settings, vocabulary);
  for (const Architecture& architecture : architectures()) {
    const Row row = table_3_row(architecture.data_dependent);
    const auto add = [&](const Row& changed) {
      std::ranges::copy(runs_of(changed, settings, vocabulary, seeds_of(settings, changed.name, 1)),
                        std::back_inserter(runs));
    };
    const auto longest = whole_number(settings, "decay_time_max");
    add(with_gate(architecture.data_independent, row, ForgetGate::kBiasOnly, settings, longest));
    add(with_gate(architecture.fixed, row, ForgetGate::kFixed, settings, longest));
    for (const int64_t other : other_decay_times(settings)) {
      add(with_gate(up_to(architecture.data_independent, other), row, ForgetGate::kBiasOnly, settings, other));
      add(with_gate(up_to(architecture.fixed, other), row, ForgetGate::kFixed, settings, other));
    }
  }
  std::ranges::copy(control_runs(settings, vocabulary), std::back_inserter(runs));
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  const int64_t trained_length = study.settings.at("training").at("context_length");
  const int64_t longest = whole_number(study.settings.at("evaluation"), "length_factor") * trained_length;
  const double confidence = study.settings.value("confidence", kConfidence);
  const std::string blind = blind_row(study.settings).name;
  Losses of_gates(confidence), with_control(confidence);  // the control's seeds are no noise of the gates' bands
  study.each([&](const Artefact& model) {
    const Run& run = model.run;
    const Evaluated at_length = evaluate(study, model, trained_length);
    const Evaluated at_longest = evaluate(study, model, longest);
    const std::vector<double> later = losses_of_sequences(at_longest, trained_length, longest);
    for (Losses* losses : {&of_gates, &with_control}) {
      if (losses == &of_gates && run.label == blind) continue;
      losses->within.add(run, at_length.value("loss"), losses_of_sequences(at_length, 0, trained_length));
      losses->beyond.add(run, mean(later), later);
    }
    const auto record = [&](const Evaluated& found, const char* metric, double value) {
      const auto [sequences, length] = std::pair(found.records.front().batch, found.records.front().length);
      findings.records.push_back(record_of(study.experiment, run, sequences, length, metric, "nats", value));
    };
    record(at_length, "loss", at_length.value("loss"));
    record(at_longest, "loss_beyond_training_length", mean(later));
    const auto curve = loss_curve(run, at_longest);
    findings.points.insert(findings.points.end(), curve.begin(), curve.end());
  });

  const auto positive = Expectation::positive();
  const auto small = Expectation::within(study.settings.at("no_effect_margin"));
  for (const auto& [data_dependent, data_independent, fixed] : architectures()) {
    const auto add = [&](Comparison comparison, bool headline) {
      comparison.source = "FoX Fig. 5 and Section 4.5";
      comparison.headline = headline;
      findings.comparisons.push_back(comparison);
    };
    add(of_gates.within.compare(
            data_dependent + ": a fixed gate is worse than a data-dependent one within the training length",
            {{fixed, 1}, {data_dependent, -1}}, positive),
        true);
    add(of_gates.beyond.compare(
            data_dependent + ": a fixed gate is worse than a data-dependent one beyond the training length",
            {{fixed, 1}, {data_dependent, -1}}, positive),
        true);
    add(of_gates.within.compare(
            data_dependent + ": a data-independent gate comes close to a data-dependent one within the training length",
            {{data_independent, 1}, {data_dependent, -1}}, small),
        false);
    add(of_gates.beyond.compare(
            data_dependent + ": a data-independent gate is worse than a data-dependent one beyond the training length",
            {{data_independent, 1}, {data_dependent, -1}}, positive),
        true);
  }
  const std::string note = study.settings.value("other_decay_times_after_a_run", "");
  for (const int64_t other : other_decay_times(study.settings))
    std::ranges::copy(of_other_decay_times(of_gates, other, note), std::back_inserter(findings.comparisons));
  for (const auto& [losses, where] : {std::pair(&with_control.within, " within the training length"),
                                      std::pair(&with_control.beyond, " beyond the training length")}) {
    const std::string fox = architectures().front().data_dependent;
    findings.comparisons.push_back(losses->compare(fox + " is better than the control, which sees a window," + where,
                                                   {{blind, 1}, {fox, -1}}, positive));
    findings.comparisons.back().source = "control, ours";
    findings.comparisons.back().note = study.settings.value("control_after_a_run", "");
  }
  return findings;
}

}  // namespace lethe::forget_gate_types
