// ACP Fig. 4 and 5: the distribution of the savings over the heads of a model, and over the heads of each layer.

#include <algorithm>
#include <cmath>

#include "experiments/claims/measures.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"

namespace lethe::per_head_savings {
namespace {

/// The interval of a share of few heads by Agresti and Coull, t² successes and failures added by halves: its centre and half width.
struct Interval {
  double centre, half_width;
};
template <typename Predicate>
Interval share_of_heads(const std::vector<double>& savings, Predicate is, double confidence) {
  const double t = student_t(1 << 20, confidence), heads = static_cast<double>(savings.size()) + t * t;
  const double centre = (static_cast<double>(std::ranges::count_if(savings, is)) + t * t / 2) / heads;
  return {centre, t * std::sqrt(centre * (1 - centre) / heads)};
}

bool is_local(double saving) { return saving > 0.5; }
bool is_global(double saving) { return saving < 0.25; }
bool is_between(double saving) { return saving >= 0.25 && saving < 0.75; }

/// Savings by head, in blocks, of the heads of all seeds.
struct Heads {
  std::vector<double> all, first_layers;
};

/// Each beside the same number of untrained heads, which are all local: what they are too is inconclusive.
std::vector<Comparison> statements(const Heads& trained, const Heads& untrained, const nlohmann::json& settings) {
  const double confidence = settings.value("confidence", kConfidence);
  const auto share = [&](const std::string& statement, std::vector<double> Heads::*heads, bool (*is)(double),
                         const Expectation& expectation, const char* source) {
    const Interval found = share_of_heads(trained.*heads, is, confidence),
                   before = share_of_heads(untrained.*heads, is, confidence);
    return Comparison{.statement = statement,
                      .source = source,
                      .unit = "share of heads",
                      .expectation = expectation,
                      .measured = found.centre,
                      .band = found.half_width,
                      .control = Control{"untrained", before.centre, before.half_width}};
  };
  const Expectation most{.low = 0.5}, some{.low = 0.05}, few{.high = 0.5};
  std::vector<Comparison> all = {
      share("Most heads are local: most of their blocks are pruned", &Heads::all, is_local, most, "ACP Fig. 4"),
      share("Some heads are global: less than a quarter of their blocks is pruned, in one head of twenty", &Heads::all,
            is_global, some, "ACP Fig. 4"),
      share("Few heads lie between a quarter and three quarters", &Heads::all, is_between, few, "ACP Fig. 4"),
      share("The heads of the first two layers are local", &Heads::first_layers, is_local, most, "ACP Fig. 5"),
  };
  all[0].headline = all[1].headline = true;
  for (const size_t of_local_heads : {0, 2, 3}) all[of_local_heads].note = settings.value("controls_after_a_run", "");
  return all;
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) { return studied_runs(settings, vocabulary); }

Findings measure(const Study& study) {
  Findings findings;
  Heads trained, before;
  const int64_t sequences = study.settings.at("evaluation").at("sequences");
  study.each([&](const Artefact& model) {
    const int64_t length = model.run.training.context_length, early = 2 * model.run.model.heads;
    const auto add = [&](Heads& heads, const std::vector<double>& savings) {
      heads.all.insert(heads.all.end(), savings.begin(), savings.end());
      heads.first_layers.insert(heads.first_layers.end(), savings.begin(),
                                savings.begin() + std::min<ptrdiff_t>(early, std::ssize(savings)));
    };
    std::vector<double> savings;  // of blocks, as the paper counts them, layer by layer
    for (const Record& record :
         records_of(study, model.run,
                    evaluated(study, model, "pruned_share", {{"length", length}, {"sequences", sequences}}))) {
      findings.records.push_back(record);
      if (record.implementation == "lethe") savings.push_back(record.value);
    }
    const std::vector<double> untrained = untrained_shares(study, model, sequences);
    add(trained, savings);
    add(before, untrained);
    findings.records.push_back(
        record_of(study.experiment, model.run, 1, length, "pruned_share_untrained", "1", mean(untrained)));
    findings.records.back().variant = "all heads";
  });
  findings.comparisons = statements(trained, before, study.settings);
  const Comparison opened = gates_opened(study, study.trained, sequences);
  judge_by_gates(findings.comparisons, opened, study.settings);
  return findings;
}

}  // namespace lethe::per_head_savings
