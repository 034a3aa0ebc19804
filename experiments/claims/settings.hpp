#pragma once
// A claim's config.toml: its title, and the training, measurements and cost of each scale.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// The folder of a claim in the checkout: README.md, paper.csv, config.toml.
std::filesystem::path claim_folder(const std::filesystem::path& root, const Experiment& experiment);

/// The table of `scale` in the claim's config.toml as JSON. With `base = "../other/config.toml"` the members of this table replace
/// those of the other file's table of the same scale.
///
/// reads   corpus: a text in place of the claim's own; empty: its own. Where experiments/data has an index of that name, as linux.toml of
///         artefacts/data/linux-gpt2, `text` is the SHA-256 of its source, and `content` that of its dataset in this tokenizer where the index has
///         it; where it has none, neither is asked for.
/// throws  std::invalid_argument naming the file, and the scales that it has; for a corpus where the claim trains on none
nlohmann::json claim_settings(const std::filesystem::path& root, const Experiment& experiment, const std::string& scale,
                              const std::string& corpus = "");

/// The claim's title: `title` in config.toml's table [claim], which also has `order`, its place in the report, and
/// [claim.words], the names of its metrics in the report.
std::string claim_title(const std::filesystem::path& root, const Experiment& experiment);

/// The cost of the claim at a scale, in words: config.toml's `cost`.
std::string cost(const std::filesystem::path& root, const Experiment& experiment, const std::string& scale);

}  // namespace lethe
