#pragma once
// Trained models by the names that users type.

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// The folders of the finished artefacts below a folder, by name. Empty where the folder is absent.
std::vector<std::filesystem::path> finished_artefacts(const std::filesystem::path& models);

/// The artefact in a folder.
///
/// throws  std::invalid_argument where its run.json is no run, or a run of another format
Artefact read_artefact(const std::filesystem::path& folder);

/// The artefact of `name`: the path of its folder, its name below `models`, or a beginning that only one name has.
///
/// throws  std::invalid_argument where no artefact or several match, or the training of the match is not finished
Artefact find_artefact(const std::filesystem::path& models, const std::string& name);

}  // namespace lethe
