#pragma once
// Trained models by the names that users type.

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/training/stored_artefact.hpp"

namespace lethe {

/// The folders of all artefacts below a folder, finished or not, by name. Empty where the folder is absent.
///
/// throws  std::runtime_error where it can't be read, e.g. a file
std::vector<std::filesystem::path> artefact_folders(const std::filesystem::path& models);

/// Those with a done.json.
std::vector<std::filesystem::path> finished_artefacts(const std::filesystem::path& models);

/// "50 %": the share of an artefact's training that its log has; 0 % without one.
std::string share_logged(const StoredArtefact& stored);

/// The artefact of `name`: the path of its folder, its name below `models`, or a beginning that only one name has.
///
/// throws  std::invalid_argument where no artefact or several match, the training of the match is not finished (with its
///         share and the call that goes on), or its files are broken: see read_artefact
Artefact find_artefact(const std::filesystem::path& models, const std::string& name);

}  // namespace lethe
