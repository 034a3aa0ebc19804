// FoX Table 3 and Fig. 9: perplexity of every row at the training length, and the contribution of each component.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "experiments/claims/measures.hpp"
#include "experiments/claims/seeds.hpp"
#include "experiments/papers/forgetting_transformer/rows.hpp"

namespace lethe::ablations {
namespace {

/// One step of the table: the loss rises by `worse` − `better`.
struct Step {
  std::string statement, worse, better;
  bool headline = false;
  bool no_effect = false;  ///< the paper finds little or none
};

const std::vector<Step>& steps() {
  static const std::vector<Step> table = {
      {"Without RoPE and forget gate, Transformer (LLaMA) is worse", "Transformer (LLaMA) without RoPE",
       "Transformer (LLaMA)", true},
      {"A forget gate improves Transformer (LLaMA)", "Transformer (LLaMA)", "FoX (LLaMA) + RoPE"},
      {"RoPE adds little to FoX (LLaMA)", "FoX (LLaMA)", "FoX (LLaMA) + RoPE", false, true},
      {"FoX (LLaMA) is better than Transformer (LLaMA)", "Transformer (LLaMA)", "FoX (LLaMA)", true},
      {"QK-norm improves FoX (LLaMA)", "FoX (LLaMA)", "FoX (LLaMA) + QK-norm"},
      {"The output gate improves on that", "FoX (LLaMA) + QK-norm", "FoX (LLaMA) + QK-norm + output gate"},
      {"The output norm improves on that", "FoX (LLaMA) + QK-norm + output gate", "FoX (Pro) - KV-shift"},
      {"KV-shift improves on that", "FoX (Pro) - KV-shift", "FoX (Pro)"},
      {"FoX (Pro) is better than FoX (LLaMA)", "FoX (LLaMA)", "FoX (Pro)", true},
      {"FoX (Pro) needs QK-norm", "FoX (Pro) - QK-norm", "FoX (Pro)"},
      {"FoX (Pro) needs the output gate", "FoX (Pro) - output gate", "FoX (Pro)"},
      {"FoX (Pro) needs the output norm", "FoX (Pro) - output norm", "FoX (Pro)"},
      {"RoPE adds nothing to FoX (Pro)", "FoX (Pro)", "FoX (Pro) + RoPE", false, true},
      {"FoX (Pro) is better than Transformer (Pro)", "Transformer (Pro)", "FoX (Pro)", true},
      {"Without RoPE and forget gate, Transformer (Pro) is worse", "FoX (Pro) - forget gate", "Transformer (Pro)",
       true},
  };
  return table;
}

constexpr const char* kAfterTheRun = "written after the run of scale gpu";
const std::string kWithQkNorm = "Transformer (LLaMA) + QK-norm";

/// Fig. 9's steps from Transformer (LLaMA) to (Pro).
const std::vector<Step>& steps_of_the_transformer() {
  static const std::vector<Step> table = {
      {"Transformer (LLaMA): QK-norm improves it", "Transformer (LLaMA)", kWithQkNorm},
      {"Transformer (LLaMA): the output gate improves on that", kWithQkNorm,
       "Transformer (LLaMA) + QK-norm + output gate"},
      {"Transformer (LLaMA): the output norm improves on that", "Transformer (LLaMA) + QK-norm + output gate",
       "Transformer (Pro) - KV-shift"},
      {"Transformer (LLaMA): KV-shift improves on that", "Transformer (Pro) - KV-shift", "Transformer (Pro)"},
  };
  return table;
}

/// Fig. 19: how far seeds move L(i) beside what the forget gate moves it by, in sixteenths of the training length.
class Seeds {
 public:
  explicit Seeds(double confidence) : confidence_(confidence) {}

  void add(const Run& run, const Evaluated& found) {
    const std::vector<double> curve = found.curve("loss_at_position");
    const auto part = static_cast<std::ptrdiff_t>(curve.size() / kParts);
    std::vector<double>& stretches = of_[run.label][run.training.seed];
    for (auto first = curve.begin(); std::ssize(stretches) < kParts; first += part)
      stretches.push_back(mean({first, first + part}));
  }

  /// Of each seed the smallest advantage of FoX (LLaMA) over Transformer (LLaMA), less how far that seed's FoX is from the mean of the others where
  /// it is farthest.
  Comparison little() const {
    Measurements differences(confidence_);
    const auto foxes = of_.find("FoX (LLaMA)"), transformers = of_.find("Transformer (LLaMA)");
    if (foxes != of_.end() && transformers != of_.end() && foxes->second.size() > 1)
      for (const auto& [seed, fox] : foxes->second) {
        if (!transformers->second.contains(seed)) continue;
        double advantage = std::numeric_limits<double>::infinity(), moved = 0;
        for (size_t part = 0; part < kParts; ++part) {
          advantage = std::min(advantage, transformers->second.at(seed)[part] - fox[part]);
          double others = 0;
          for (const auto& [other, losses] : foxes->second) others += other == seed ? 0 : losses[part];
          others /= static_cast<double>(foxes->second.size() - 1);
          moved = std::max(moved, std::abs(fox[part] - others));
        }
        differences.add(kRow, seed, advantage - moved);
      }
    Comparison comparison = differences.compare(
        "Seeds move L(i) of FoX (LLaMA) by less than the forget gate does, within the training length", {{kRow, 1}},
        Expectation::positive());
    if (!differences.has(kRow)) {
      comparison.absent_row = "FoX (LLaMA)";
      comparison.out_of_reach = "this scale does not train several seeds of FoX and Transformer (LLaMA)";
    }
    comparison.source = "FoX Fig. 19 and Appendix E.10";
    comparison.note = kAfterTheRun;
    return comparison;
  }

 private:
  static constexpr int64_t kParts = 16;
  static constexpr const char* kRow = "advantage less scatter";
  double confidence_;
  std::map<std::string, std::map<uint64_t, std::vector<double>>> of_;
};

/// The mean loss of the positions beyond the training length T less that of T/2 … T, on pieces of `factor` T.
std::vector<double> rises(const Study& study, const Artefact& model, int64_t factor) {
  const int64_t trained = model.run.training.context_length, longest = factor * trained;
  const Evaluated found = evaluate(study, model, longest);
  std::vector<double> rise = losses_of_sequences(found, trained, longest);
  const std::vector<double> late = losses_of_sequences(found, trained / 2, trained);
  for (size_t s = 0; s < rise.size(); ++s) rise[s] -= late[s];
  return rise;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  std::vector<std::string> names;
  for (const auto& rows : {table_3(), figure_9()})
    for (const Row& row : rows) names.push_back(row.name);
  std::vector<Run> runs = table_3_runs(names, settings, vocabulary);
  std::ranges::copy(control_runs(settings, vocabulary), std::back_inserter(runs));
  return runs;
}

Findings measure(const Study& study) {
  Findings findings;
  const double confidence = study.settings.value("confidence", kConfidence);
  Measurements losses(confidence), rise(confidence);
  Seeds seeds(confidence);
  const int64_t factor = study.settings.at("evaluation").value("length_factor", int64_t{0});  // 0: not asked
  study.each([&](const Artefact& artefact) {
    const Run& run = artefact.run;
    const int64_t length = run.training.context_length;
    const Evaluated found = evaluate(study, artefact, length);
    losses.add(run, found.value("loss"), losses_of_sequences(found, 0, length));
    if (run.label.ends_with("(LLaMA)")) seeds.add(run, found);
    if (factor > 0 && (run.label == "Transformer (LLaMA)" || run.label == kWithQkNorm)) {
      const std::vector<double> of_sequences = rises(study, artefact, factor);
      rise.add(run, mean(of_sequences), of_sequences);
    }

    for (Record& record : records_of(study, run, found)) findings.records.push_back(std::move(record));
    const auto [batch, samples] = std::pair(findings.records.back().batch, findings.records.back().samples);
    findings.records.push_back(record_of(study.experiment, run, batch, length, "parameters", "1",
                                         static_cast<double>(count_parameters(run.model).non_embedding)));
    findings.records.back().samples = samples;
    for (auto&& points : {training_curve(run, artefact), loss_curve(run, found)})
      findings.points.insert(findings.points.end(), points.begin(), points.end());
  });

  const double margin = study.settings.at("no_effect_margin");
  for (const Step& step : steps()) {
    const Expectation expectation = step.no_effect ? Expectation::within(margin) : Expectation::positive();
    Comparison comparison = losses.compare(step.statement, {{step.worse, 1}, {step.better, -1}}, expectation);
    comparison.source = "FoX Table 3";
    comparison.headline = step.headline;
    comparison.paper =
        std::log(paper_value(study, step.worse, "perplexity") / paper_value(study, step.better, "perplexity"));
    findings.comparisons.push_back(comparison);
  }
  const std::string of_figure_9 = study.settings.value("figure_9_after_a_run", "");
  for (const Step& step : steps_of_the_transformer()) {
    findings.comparisons.push_back(
        losses.compare(step.statement, {{step.better, -1}, {step.worse, 1}}, Expectation::positive()));
    findings.comparisons.back().source = "FoX Fig. 9";
    findings.comparisons.back().note = of_figure_9;
  }
  findings.comparisons.push_back(
      rise.compare("Transformer (LLaMA): with QK-norm its loss rises less beyond the training length",
                   {{kWithQkNorm, -1}, {"Transformer (LLaMA)", 1}}, Expectation::positive()));
  findings.comparisons.back().source = "FoX Fig. 9, Fig. 17 and Appendix E.2";
  findings.comparisons.back().note = of_figure_9;
  // The explainer page says the opposite of the table's numbers: there the Transformer gains more from the Pro architecture.
  Comparison pro =
      losses.compare("The Pro architecture gives the Transformer more than FoX",
                     {{"Transformer (LLaMA)", 1}, {"Transformer (Pro)", -1}, {"FoX (LLaMA)", -1}, {"FoX (Pro)", 1}},
                     Expectation::positive());
  const auto paper = [&](const char* row) { return std::log(paper_value(study, row, "perplexity")); };
  pro.paper = paper("Transformer (LLaMA)") - paper("Transformer (Pro)") - paper("FoX (LLaMA)") + paper("FoX (Pro)");
  pro.source = "FoX Table 3; the page says the opposite";
  findings.comparisons.push_back(pro);
  Comparison transformer =
      losses.compare("Transformer (Pro) is better than Transformer (LLaMA)",
                     {{"Transformer (LLaMA)", 1}, {"Transformer (Pro)", -1}}, Expectation::positive());
  transformer.paper = paper("Transformer (LLaMA)") - paper("Transformer (Pro)");
  transformer.source = "FoX Table 3 and abstract";
  transformer.note = kAfterTheRun;
  findings.comparisons.push_back(transformer);
  findings.comparisons.push_back(seeds.little());
  const std::string blind = blind_row(study.settings).name;
  for (const char* row : {"FoX (LLaMA)", "Transformer (LLaMA)"}) {
    findings.comparisons.push_back(losses.compare(std::string(row) + " is better than the control, which sees a window",
                                                  {{blind, 1}, {row, -1}}, Expectation::positive()));
    findings.comparisons.back().source = "control, ours";
  }
  return findings;
}

}  // namespace lethe::ablations
