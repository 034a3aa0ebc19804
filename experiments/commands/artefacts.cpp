#include "experiments/commands/artefacts.hpp"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace lethe {
namespace {

namespace fs = std::filesystem;

bool is_finished(const fs::path& folder) { return fs::exists(folder / "done.json"); }

}  // namespace

std::vector<fs::path> finished_artefacts(const fs::path& models) {
  std::vector<fs::path> found;
  if (!fs::is_directory(models)) return found;
  for (const auto& entry : fs::directory_iterator(models))
    if (is_finished(entry.path())) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

Artefact read_artefact(const fs::path& folder) {
  std::ifstream file(folder / "run.json");
  try {
    return {folder, nlohmann::json::parse(file).get<Run>()};
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument((folder / "run.json").string() + ": expected a run, found " + error.what());
  }
}

Artefact find_artefact(const fs::path& models, const std::string& name) {
  if (is_finished(name)) return read_artefact(name);
  std::string names;
  std::vector<fs::path> matching;
  for (const fs::path& folder : finished_artefacts(models)) {
    const std::string candidate = folder.filename();
    if (candidate == name) return read_artefact(folder);
    if (candidate.starts_with(name)) {
      matching.push_back(folder);
      names += (names.empty() ? "" : ", ") + candidate;
    }
  }
  if (matching.size() != 1)
    throw std::invalid_argument(
        "artefact: expected the folder or name of a trained model (lethe list shows them), found '" + name +
        (names.empty() ? "'" : "', which begins " + names));
  return read_artefact(matching.front());
}

}  // namespace lethe
