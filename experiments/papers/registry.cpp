#include "experiments/papers/registry.hpp"

#include <toml++/toml.h>
#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "experiments/papers/claims.hpp"

namespace lethe {
namespace {

toml::table read_toml(const std::filesystem::path& path) {
  try {
    return toml::parse_file(path.string());
  } catch (const toml::parse_error& error) {
    std::ostringstream text;
    text << path.string() << ": " << error.description() << " at " << error.source().begin;
    throw std::invalid_argument(text.str());
  }
}

nlohmann::json scale_table(const std::filesystem::path& path, const std::string& scale) {
  const toml::table file = read_toml(path);
  const toml::table* table = file[scale].as_table();
  if (table == nullptr) {
    std::string known;
    for (const auto& [name, _] : file) known += (known.empty() ? "" : ", ") + std::string(name.str());
    throw std::invalid_argument("scale: expected one of " + known + " of " + path.string() + ", found " + scale);
  }
  std::ostringstream text;
  text << toml::json_formatter{*table};
  nlohmann::json settings = nlohmann::json::parse(text.str());
  if (!settings.contains("base")) return settings;
  nlohmann::json base = scale_table(path.parent_path() / settings["base"].get<std::string>(), scale);
  settings.erase("base");
  base.merge_patch(settings);
  return base;
}

}  // namespace

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> table = {
      {"forgetting_transformer", "ablations", "What each component of FoX (Pro) contributes (FoX Table 3)",
       ablations::runs, ablations::measure},
      {"forgetting_transformer", "forget_gate_types",
       "Data-dependent, data-independent and fixed forget gates (FoX Fig. 5)", forget_gate_types::runs,
       forget_gate_types::measure},
      {"forgetting_transformer", "length_extrapolation", "Loss within and beyond the training length (FoX Fig. 2)",
       length_extrapolation::runs, length_extrapolation::measure},
      {"forgetting_transformer", "duality", "Recurrent, parallel and chunked forms are one function (FoX Eq. 3-13)",
       duality::runs, duality::measure},
      {"adaptive_computation_pruning", "savings",
       "How much attention ACP prunes and how much time that saves (ACP Fig. 2)", savings::runs, savings::measure},
      {"adaptive_computation_pruning", "per_head_savings", "Local and global heads (ACP Fig. 4 and 5)",
       per_head_savings::runs, per_head_savings::measure},
      {"adaptive_computation_pruning", "boundaries",
       "Decay, attention and the pruning boundary of some heads (ACP Fig. 6)", boundaries::runs, boundaries::measure},
      {"adaptive_computation_pruning", "tolerance", "Pruned share and loss over the tolerance ε (ACP Fig. 7)",
       tolerance::runs, tolerance::measure},
      {"decaying_fast_weights", "generation_cost", "Time and memory of one generated token (T2FW Fig. 1)",
       generation_cost::runs, generation_cost::measure},
      {"decaying_fast_weights", "update_rules",
       "Recurrent rules in the place of a trained model's attention, and which diverge (T2FW Table 1)",
       update_rules::runs, update_rules::measure},
      {"decaying_fast_weights", "state_capacity",
       "What a larger state is worth to the decay and the gated rule (T2FW Table 2)", state_capacity::runs,
       state_capacity::measure},
  };
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

std::filesystem::path claim_folder(const std::filesystem::path& root, const Experiment& experiment) {
  return root / "experiments" / "papers" / experiment.paper / experiment.claim;
}

nlohmann::json claim_settings(const std::filesystem::path& root, const Experiment& experiment,
                              const std::string& scale) {
  return scale_table(claim_folder(root, experiment) / "config.toml", scale);
}

std::string cost(const std::filesystem::path& root, const Experiment& experiment, const std::string& scale) {
  return claim_settings(root, experiment, scale).at("cost").get<std::string>();
}

std::filesystem::path results_folder(const std::filesystem::path& root, const std::string& scale) {
  return root / "results" / (scale == "quick" ? machine_name() : machine_name() + "-" + scale);
}

}  // namespace lethe
