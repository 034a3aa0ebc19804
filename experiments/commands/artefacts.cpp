#include "experiments/commands/artefacts.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace lethe {
namespace {

namespace fs = std::filesystem;

bool is_finished(const fs::path& folder) { return fs::exists(folder / "done.json"); }

Artefact read_artefact(const fs::path& folder) {
  std::ifstream file(folder / "run.json");
  try {
    return {folder, nlohmann::json::parse(file).get<Run>()};
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument((folder / "run.json").string() + ": expected a run, found " + error.what());
  }
}

}  // namespace

std::vector<Artefact> finished_artefacts(const fs::path& models) {
  std::vector<Artefact> found;
  if (!fs::is_directory(models)) return found;
  for (const auto& entry : fs::directory_iterator(models))
    if (is_finished(entry.path())) found.push_back(read_artefact(entry.path()));
  std::ranges::sort(found, {}, &Artefact::folder);
  return found;
}

Artefact find_artefact(const fs::path& models, const std::string& name) {
  if (is_finished(name)) return read_artefact(name);
  std::string names;
  std::vector<Artefact> matching;
  for (const auto& artefact : finished_artefacts(models)) {
    const std::string candidate = artefact.folder.filename();
    if (candidate == name) return artefact;
    if (candidate.starts_with(name)) {
      matching.push_back(artefact);
      names += (names.empty() ? "" : ", ") + candidate;
    }
  }
  if (matching.size() != 1)
    throw std::invalid_argument(
        "artefact: expected the folder or name of a trained model (lethe list shows them), found '" + name +
        (names.empty() ? "'" : "', which begins " + names));
  return matching.front();
}

}  // namespace lethe
