#include "experiments/commands/artefacts.hpp"

#include <algorithm>
#include <stdexcept>

namespace lethe {
namespace {

namespace fs = std::filesystem;

bool has_end(const fs::path& folder) {
  std::error_code unreadable;
  return fs::exists(folder / "done.json", unreadable);
}

Artefact whole(const fs::path& folder) {
  const StoredArtefact stored = read_artefact(folder);
  if (!stored.broken.empty()) throw std::invalid_argument(stored.broken);
  return {stored.folder, stored.run};
}

}  // namespace

std::vector<fs::path> artefact_folders(const fs::path& models) {
  std::vector<fs::path> found;
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(models, unreadable))
    if (entry.is_directory(unreadable)) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

std::vector<fs::path> finished_artefacts(const fs::path& models) {
  std::vector<fs::path> found = artefact_folders(models);
  std::erase_if(found, [](const fs::path& folder) { return !has_end(folder); });
  return found;
}

Artefact find_artefact(const fs::path& models, const std::string& name) {
  if (has_end(name)) return whole(name);
  std::string names;
  std::vector<fs::path> matching;
  for (const fs::path& folder : finished_artefacts(models)) {
    const std::string candidate = folder.filename();
    if (candidate == name) return whole(folder);
    if (candidate.starts_with(name)) {
      matching.push_back(folder);
      names += (names.empty() ? "" : ", ") + candidate;
    }
  }
  if (matching.size() != 1)
    throw std::invalid_argument(
        "artefact: expected the folder or name of a trained model (lethe list shows them), found '" + name +
        (names.empty() ? "'" : "', which begins " + names));
  return whole(matching.front());
}

}  // namespace lethe
