#include "experiments/papers/throughput/kernel_speeds.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "experiments/claims/deciding.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

/// The half width of a median's 95 % interval, as a share of the median.
double relative_band(const Record& speed) {
  return 1.25 * 1.96 * speed.stddev / (speed.value * std::sqrt(static_cast<double>(speed.samples)));
}

/// The commit and the GPU, or else the machine, that a benchmark's JSON names: ours beside a table, or Google Benchmark's.
std::pair<std::string, std::string> origin_of(std::filesystem::path data) {
  const nlohmann::json file = read_json(data.replace_extension(".json"));
  if (file.contains("context")) return {file["context"].at("commit"), file["context"].at("gpu")};
  const nlohmann::json& machine = file.at("machine");
  return {file.at("commit"), machine.at(machine.contains("gpu") ? "gpu" : "name")};
}

}  // namespace

std::string case_name(int64_t length, int64_t dim) {
  return "T=" + std::to_string(length) + " D=" + std::to_string(dim);
}

Findings judge(const Study& study, const std::vector<Measured>& all, Expectation (*expected)(double goal)) {
  Findings findings;
  const auto [commit, machine] = origin_of(study.data);
  for (const Measured& measured : all) {
    findings.records.push_back(measured.record);
    findings.records.back().commit = commit;
    findings.records.back().machine = machine;
  }
  for (const auto& [goal, source, _] : study.paper) {
    const auto found = std::ranges::find_if(all, [&goal = goal](const Measured& measured) {
      return measured.record.variant == goal.variant && measured.record.metric == goal.metric;
    });
    if (found == all.end())
      throw std::invalid_argument(study.data.string() + ": expected " + goal.metric + " of " + goal.variant +
                                  ", found none");
    findings.comparisons.push_back({.statement = found->words + ", " + goal.variant,
                                    .source = source,
                                    .unit = "1",
                                    .headline = true,
                                    .expectation = expected(goal.value),
                                    .measured = found->record.value,
                                    .band = found->band});
    Comparison& comparison = findings.comparisons.back();
    comparison.would_decide = deciding_sample(comparison, found->band, 0, "the measurements");
  }
  return findings;
}

std::vector<Measured> speed_ratios(const Study& study, const std::vector<SpeedRatio>& ratios) {
  const std::vector<Record> records = read_records(study.data);
  std::vector<Measured> all;
  std::set<std::pair<int64_t, int64_t>> cases;
  for (const Record& record : records) cases.emplace(record.length, record.key_dim);
  for (const auto& [length, dim] : cases) {
    for (const SpeedRatio& ratio : ratios) {
      const auto find = [&, length = length, dim = dim](const std::string& implementation, const std::string& metric) {
        const auto found = std::ranges::find_if(records, [&](const Record& r) {
          return r.length == length && r.key_dim == dim && r.variant == ratio.gate &&
                 r.implementation == implementation && r.metric == metric;
        });
        return found == records.end() ? nullptr : &*found;
      };
      const std::string metric = ratio.direction + "_speed";
      const Record *ours = find(ratio.ours, metric), *fastest = nullptr, *pruned = find("lethe", "pruned_share");
      for (const std::string& rival : ratio.rivals)
        if (const Record* speed = find(rival, metric); speed && (!fastest || speed->value > fastest->value))
          fastest = speed;
      if (!ours || !fastest || !pruned) continue;
      Record record = *ours;
      record.claim = study.experiment.claim;
      record.variant = case_name(length, dim);
      record.implementation = "lethe";
      record.metric = ratio.metric;
      record.unit = std::string("1");  // GCC 12 warns of the assignment of a literal here
      record.value = ours->value / fastest->value * (ratio.times_kept_share ? 1 - pruned->value : 1);
      const double relative = std::hypot(relative_band(*ours), relative_band(*fastest));
      record.stddev = record.value * relative * std::sqrt(static_cast<double>(record.samples)) / (1.25 * 1.96);
      all.push_back({record, record.value * relative, ratio.words});
    }
  }
  return all;
}

}  // namespace lethe
