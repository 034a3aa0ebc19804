// The cost of the gate: the kernels' times over those of the same kernels built without a gate.

#include <cmath>
#include <map>
#include <regex>

#include "experiments/json_file.hpp"
#include "experiments/papers/throughput/kernel_speeds.hpp"

namespace lethe::gate_cost {
namespace {

constexpr const char* kRatio = "ratio_to/lethe_kernels_without_gate";

/// "backward/D:64/T:16384/open/…": direction, head dim and length.
const std::regex kOpenGate("(forward|backward)/D:([0-9]+)/T:([0-9]+)/open/.*");

}  // namespace

std::vector<Run> runs(const nlohmann::json&, int64_t) { return {}; }

Findings measure(const Study& study) {
  const nlohmann::json file = read_json(study.data);
  std::map<std::string, double> deviations;
  for (const nlohmann::json& entry : file.at("benchmarks"))
    if (entry.value("aggregate_name", "") == "stddev" && entry.contains(kRatio))
      deviations[entry.at("run_name")] = entry.at(kRatio);
  std::vector<Measured> all;
  for (const nlohmann::json& entry : file.at("benchmarks")) {
    const std::string name = entry.at("run_name");
    std::smatch parts;
    if (entry.value("aggregate_name", "") != "mean" || !std::regex_match(name, parts, kOpenGate)) continue;
    const std::string direction = parts[1];
    const int64_t dim = std::stoll(parts[2]), length = std::stoll(parts[3]);
    const int samples = entry.at("repetitions");
    const double deviation = deviations.at(name);
    all.push_back({{.experiment = study.experiment.paper,
                    .claim = study.experiment.claim,
                    .variant = case_name(length, dim),
                    .implementation = "lethe",
                    .device = file.at("context").at("gpu"),
                    .dtype = "bfloat16",
                    .length = length,
                    .key_dim = dim,
                    .value_dim = dim,
                    .metric = direction + "_cost",
                    .unit = "1",
                    .value = entry.at(kRatio).get<double>() - 1,
                    .stddev = deviation,
                    .samples = samples},
                   student_t(samples - 1) * deviation / std::sqrt(samples),
                   "What an open gate adds to the time of the " + direction + " kernels"});
  }
  return judge(study, all, [](double goal) { return Expectation{.high = goal}; });
}

}  // namespace lethe::gate_cost
