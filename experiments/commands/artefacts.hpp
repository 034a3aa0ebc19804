#pragma once
// Trained models by the names that people type.

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// The folders of the finished artefacts below a folder, by name. Empty where the folder is absent.
std::vector<std::filesystem::path> finished_artefacts(const std::filesystem::path& models);

/// The artefact in a folder.
///
/// throws  std::invalid_argument where its run.json is none, or one of another format
Artefact read_artefact(const std::filesystem::path& folder);

/// The artefact that `name` means: the path of its folder, its name below `models`, or the beginning of only one.
///
/// throws  std::invalid_argument where it means none, several, or one whose training is not finished
Artefact find_artefact(const std::filesystem::path& models, const std::string& name);

}  // namespace lethe
