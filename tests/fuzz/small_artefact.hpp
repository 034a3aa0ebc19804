#pragma once
// A dataset of a few hundred tokens and a model trained on it, small enough to be read ten thousand times.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "experiments/data/dataset.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {

/// Writes a dataset's files to a folder.
///
/// returns  the folder
std::filesystem::path write_small_dataset(const std::filesystem::path& folder);

/// Writes dataset.json with the hashes that follow from its other members.
void describe_dataset(const std::filesystem::path& folder, nlohmann::json description);

/// That dataset, read.
const Dataset& small_dataset();

/// Writes the files of a finished training that started from another model: run.json, done.json, log.jsonl, checkpoint.pt.
///
/// returns  the folder
std::filesystem::path write_small_artefact(const std::filesystem::path& folder);

/// The position after a log's last line.
LogPosition position_of(std::string_view log);

}  // namespace lethe
