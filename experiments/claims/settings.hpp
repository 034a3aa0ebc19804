#pragma once
// A claim's config.toml: its title, and what each scale trains, measures and costs.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// The folder of a claim in the checkout: README.md, paper.csv, config.toml.
std::filesystem::path claim_folder(const std::filesystem::path& root, const Experiment& experiment);

/// The table of `scale` in the claim's config.toml as JSON; a table `base = "../other/config.toml"` is the other file's table of
/// the same scale, over which this one is laid.
///
/// throws  std::invalid_argument naming the file, and the scales that it has
nlohmann::json claim_settings(const std::filesystem::path& root, const Experiment& experiment,
                              const std::string& scale);

/// What the claim is about: `title` in config.toml's table [claim], which also has `order`, its place in the report, and
/// [claim.words], what the report calls its metrics.
std::string claim_title(const std::filesystem::path& root, const Experiment& experiment);

/// What the experiment costs at a scale, in words: config.toml's `cost`.
std::string cost(const std::filesystem::path& root, const Experiment& experiment, const std::string& scale);

}  // namespace lethe
