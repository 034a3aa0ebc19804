#pragma once
// A trained or begun model as its folder's small files describe it.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// What run.json and done.json of a folder hold; the checkpoint is not opened.
struct StoredArtefact {
  std::filesystem::path folder;
  Run run;
  std::string failed;   ///< the error that ended the training; empty without one
  nlohmann::json done;  ///< done.json without its seal; null where the training is not finished
  std::string
      broken;  ///< empty, or one line: the file, expected, found. What could be read is then in the other members
};

/// Reads and compares both files: done.json against its SHA-256, and its identity against that of run.json.
///
/// returns  a reason in `broken` in place of an exception, whatever the folder holds
StoredArtefact read_artefact(const std::filesystem::path& folder);

/// Whether a measurement, a file of an artefact's folder measured/, is of the weights that done.json names. Where one of the two is of an earlier
/// version, which names none, it counts as theirs.
bool is_of_weights(const nlohmann::json& measurement, const nlohmann::json& done);

/// The folders of other trainings of the same run, folder/others/K/<name of the folder>, in the order of their import.
std::vector<std::filesystem::path> other_trainings(const std::filesystem::path& folder);

/// throws  std::invalid_argument where `run` is not the run of `identity`, naming the first member that differs
///
/// reads  file: of the run, for the message; holder: the file of the identity
void expect_identity(const Run& run, const std::string& identity, const std::filesystem::path& file,
                     const std::filesystem::path& holder);

}  // namespace lethe
