#pragma once
// Bundles: finished artefacts without their weights, carried between machines.

#include <filesystem>
#include <string>
#include <vector>

namespace lethe {

struct Imported {
  int64_t models = 0, measurements = 0;  ///< new ones
};

/// Merges bundles into a folder of models; nothing that is there is replaced, and nothing is copied before all was checked. Another training
/// of a run that is there, by the hash of its weights, else by what its end recorded, becomes one of its other_trainings.
///
/// throws  std::invalid_argument naming the first file that is damaged or isn't what its name says
Imported import_bundles(const std::vector<std::string>& files, const std::filesystem::path& models);

}  // namespace lethe
