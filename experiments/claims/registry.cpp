#include "experiments/claims/registry.hpp"

#include <algorithm>
#include <stdexcept>

namespace lethe {

#define LETHE_CLAIM(paper, claim)                                            \
  namespace claim {                                                          \
  std::vector<Run> runs(const nlohmann::json& settings, int64_t vocabulary); \
  Findings measure(const Study& study);                                      \
  }
#include "experiments/claims/rows.inc"
#undef LETHE_CLAIM

const std::vector<Experiment>& experiments() {
#define LETHE_CLAIM(paper, claim) {#paper, #claim, claim::runs, claim::measure},
  static const std::vector<Experiment> table = {
#include "experiments/claims/rows.inc"
  };
#undef LETHE_CLAIM
  return table;
}

std::vector<Experiment> select_experiments(const std::vector<std::string>& names) {
  if (names.empty()) return experiments();
  const auto matches = [](const Experiment& experiment, const std::string& name) {
    return name == experiment.name() || name == experiment.paper || name == experiment.claim;
  };
  for (const std::string& name : names)
    if (std::ranges::none_of(experiments(), [&](const Experiment& experiment) { return matches(experiment, name); }))
      throw std::invalid_argument("experiment: expected a paper, a claim or paper/claim, found " + name);
  std::vector<Experiment> selected;
  for (const Experiment& experiment : experiments())
    if (std::ranges::any_of(names, [&](const std::string& name) { return matches(experiment, name); }))
      selected.push_back(experiment);
  return selected;
}

}  // namespace lethe
