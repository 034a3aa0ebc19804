// ACP Fig. 6: the decay D, the attention A and the pruning boundary of three heads, from the most local to the most global;
// and the bound of the pruning criterion, checked on every head.

#include <algorithm>
#include <cmath>

#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/papers/adaptive_computation_pruning/runs.hpp"
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

}  // namespace

std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary) {
  return {studied_run(settings, vocabulary)};
}

Findings measure(const Study& study) {
  Findings findings;
  const Run& run = study.trained.front().run;
  LanguageModel model = load_model(study.trained.front());
  const int64_t length = run.training.context_length;
  const double log_tolerance = *run.model.mixer.only<AttentionConfig>().log_pruning_tolerance;

  const auto shares = head_shares(model, study.dataset, length, 1);
  const auto trace = traced(model, study.dataset, length, 0);
  const reference::Blocks single{1, 1};
  const auto head_of_share = [&](const HeadShare& share) {
    return traced_head(trace[static_cast<size_t>(share.layer)], share.head);
  };
  const auto boundary_of = [&](const HeadShare& share, const Head& head) {
    const double threshold = traced_threshold(trace[static_cast<size_t>(share.layer)], share.head, log_tolerance);
    return pruning::boundary_by_search(head.log_forget, length, single, threshold);
  };

  double worst = 0;
  for (size_t s = 0; s < shares.size(); ++s) {
    const Head head = head_of_share(shares[s]);
    const double discarded = pruning::discarded_weight(head, single, boundary_of(shares[s], head)).maxCoeff();
    worst = std::max(worst, discarded);
    for (const auto& [metric, value] :
         {std::pair("pruned_share", shares[s].entries[0]), std::pair("discarded_weight", discarded)}) {
      findings.records.push_back(record_of(study.experiment, run, 1, length, metric, "1", value));
      findings.records.back().variant = shares[s].name();
      findings.records.back().implementation = "single pairs";
    }
    study.progress(static_cast<double>(s + 1) / static_cast<double>(shares.size()));
  }

  auto ordered = shares;
  std::ranges::sort(ordered, std::ranges::greater{}, [](const HeadShare& share) { return share.entries[0]; });
  const HeadShare &most_local = ordered.front(), &middle = ordered[ordered.size() / 2], &most_global = ordered.back();
  for (const HeadShare& share : {most_local, middle, most_global}) {
    const Head head = head_of_share(share);
    const auto picture = pictures(head, boundary_of(share, head), share.name());
    findings.points.insert(findings.points.end(), picture.begin(), picture.end());
  }

  findings.comparisons = {
      {.statement = "No query loses more attention than the tolerance to pruning, in any head",
       .source = "ACP Section 3 and Appendix A",
       .unit = "attention weight",
       .headline = true,
       .expectation = {.high = std::exp(log_tolerance)},
       .paper = std::exp(log_tolerance),
       .measured = worst},
      {.statement = "The most local head has most of its attention pruned (share above one half)",
       .source = "ACP Fig. 6 left and middle",
       .unit = "share",
       .headline = true,
       .expectation = Expectation::positive(),
       .measured = most_local.entries[0] - 0.5},
      {.statement = "The most global head has next to nothing pruned",
       .source = "ACP Fig. 6 right",
       .unit = "share",
       .expectation = {.high = 0.05},
       .measured = most_global.entries[0]},
  };
  return findings;
}

}  // namespace lethe::boundaries
