// ACP Fig. 6: the decay D, the attention A and the pruning boundary of three heads, from the most local to the most global;
// and the bound of the pruning criterion, checked on every head.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "experiments/claims/measures.hpp"
#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/listed.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"
#include "experiments/parallel.hpp"
#include "reference/computation_pruning.hpp"

namespace lethe::boundaries {
namespace {

namespace pruning = reference::computation_pruning;

constexpr double kShownWeight = 0.1;  ///< ACP Fig. 6 shows the entries of A above it

/// c, with D_ij = c_i − c_j; the first key that each query visits; the entries of A in the figure.
std::vector<Point> pictures(const Head& head, const std::vector<int64_t>& boundary, const std::string& name) {
  std::vector<Point> points;
  const auto add = [&](const char* quantity, int64_t x, double y, double value) {
    points.push_back({.quantity = quantity, .variant = name, .x = static_cast<double>(x), .y = y, .value = value});
  };
  const double none = std::numeric_limits<double>::quiet_NaN();
  const Eigen::Index length = head.key.rows();
  Vector<double> decay = Vector<double>::Zero(length);
  for (Eigen::Index i = 1; i < length; ++i) decay[i] = decay[i - 1] + head.log_forget[i];
  for (Eigen::Index i = 0; i < length; ++i) {
    add("cumulative_log_forget", i, none, decay[i]);
    add("first_visited_key", i, none, static_cast<double>(boundary[static_cast<size_t>(i)]));
    const auto keys = head.key.topRows(i + 1);
    Vector<double> weights = head.scale * (keys * head.query.row(i).transpose()) - decay.head(i + 1);
    weights = (weights.array() - weights.maxCoeff()).exp();
    weights /= weights.sum();
    for (Eigen::Index j = 0; j <= i; ++j)
      if (weights[j] > kShownWeight) add("attention_weight", i, static_cast<double>(j), weights[j]);
  }
  return points;
}

/// The pruned share and the discarded weight of each head on one sequence, and the pictures of three of them.
nlohmann::json measured_heads(LanguageModel& model, const Dataset& dataset, int64_t length, double log_tolerance) {
  auto shares = head_shares(model, dataset, length, 1);
  const auto trace = traced(model, dataset, length, 0);
  const reference::Blocks single{1, 1};
  const auto head_of = [&](const HeadShare& share) {
    return traced_head(trace[static_cast<size_t>(share.layer)], share.head);
  };
  const auto boundary_of = [&](const HeadShare& share, const Head& head) {
    const double threshold = traced_threshold(trace[static_cast<size_t>(share.layer)], share.head, log_tolerance);
    return pruning::boundary_by_walk(head.log_forget, length, single, threshold);
  };

  std::vector<double> discarded(shares.size());
  at::parallel_for(0, std::ssize(shares), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Head head = head_of(shares[i]);
      discarded[i] = pruning::discarded_weight(head, single, boundary_of(shares[i], head)).maxCoeff();
    }
  });
  nlohmann::json heads = nlohmann::json::array();
  for (size_t i = 0; i < shares.size(); ++i)
    heads.push_back(
        {{"name", shares[i].name()}, {"pruned_share", shares[i].entries[0]}, {"discarded_weight", discarded[i]}});
  std::ranges::sort(shares, std::ranges::greater{}, [](const HeadShare& share) { return share.entries[0]; });
  std::vector<Point> shown;  // from the most local head to the most global
  for (const HeadShare* share : {&shares.front(), &shares[shares.size() / 2], &shares.back()}) {
    const Head head = head_of(*share);
    for (Point& point : pictures(head, boundary_of(*share, head), share->name())) shown.push_back(std::move(point));
  }
  return {{"heads", heads}, {"pictures", json_of(shown)}};
}

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) { return studied_runs(settings, vocabulary); }

Findings measure(const Study& study) {
  Findings findings;
  const double log_tolerance = study.settings.at("log_tolerance");
  const int64_t sequences = study.settings.at("evaluation").at("sequences");
  std::vector<double> pruned,
      before;  // of the blocks, as the paper counts, by head of each model; before: its training
  double worst = 0;
  study.each([&](const Artefact& model) {
    const int64_t length = model.run.training.context_length;
    const auto found = study.measured(model, {"boundaries"}, {{"length", length}}, [&](LanguageModel& weights) {
      return measured_heads(weights, study.dataset, length, log_tolerance);
    });
    for (const Record& record :
         records_of(study, model.run,
                    evaluated(study, model, "pruned_share", {{"length", length}, {"sequences", sequences}}))) {
      if (record.implementation != "lethe") continue;  // single pairs are those of the pictures' sequence
      findings.records.push_back(record);
      pruned.push_back(record.value);
    }
    std::ranges::copy(untrained_shares(study, model, sequences), std::back_inserter(before));
    for (const nlohmann::json& head : found.at("heads")) {
      worst = std::max(worst, head.at("discarded_weight").get<double>());
      for (const char* metric : {"pruned_share", "discarded_weight"}) {
        findings.records.push_back(record_of(study.experiment, model.run, 1, length, metric, "1", head.at(metric)));
        findings.records.back().variant = head.at("name");
        findings.records.back().implementation = "single pairs";
      }
    }
    if (findings.points.empty()) findings.points = points_of(found.at("pictures"));
  });
  const auto [most_global, most_local] = std::ranges::minmax(pruned);

  const std::string after_a_run = study.settings.value("blocks_after_a_run", "");
  std::vector<Comparison> on_gates = {
      {.statement = "The most local head has most of its attention pruned (share above one half)",
       .source = "ACP Fig. 6 left and middle",
       .unit = "share of the blocks above one half",
       .headline = true,
       .expectation = Expectation::positive(),
       .measured = most_local - 0.5,
       .control = Control{"untrained", std::ranges::max(before) - 0.5, 0},
       .note = after_a_run},
      {.statement = "The most global head has next to nothing pruned",
       .source = "ACP Fig. 6 right",
       .unit = "share of the blocks",
       .headline = true,
       .expectation = {.high = 0.05},
       .measured = most_global,
       .note =
           all_notes({"a headline before the first run, none after a run that refuted it (0.94 at 0.4M parameters), "
                      "a headline again",
                      after_a_run})},
  };
  judge_by_gates(on_gates, gates_opened(study, study.trained, sequences), study.settings);
  findings.comparisons = {{.statement = "No query loses more attention than the tolerance to pruning, in any head",
                           .source = "ACP Section 3 and Appendix A",
                           .unit = "attention weight",
                           .headline = true,
                           .expectation = {.high = std::exp(log_tolerance)},
                           .paper = std::exp(log_tolerance),
                           .measured = worst}};
  findings.comparisons.insert(findings.comparisons.end(), on_gates.begin(), on_gates.end());
  return findings;
}

}  // namespace lethe::boundaries
