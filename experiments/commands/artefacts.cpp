#include "experiments/commands/artefacts.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/commands/text_table.hpp"
#include "experiments/files.hpp"
#include "experiments/listed.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

bool has_file(const fs::path& folder, const char* name) {
  std::error_code unreadable;
  return fs::exists(folder / name, unreadable);
}

Artefact whole(const fs::path& folder) {
  const StoredArtefact stored = read_artefact(folder);
  if (!stored.broken.empty()) throw std::invalid_argument(stored.broken);
  if (stored.done.is_null()) {
    const std::string name = fs::weakly_canonical(folder).filename();
    const std::string found = "artefact: expected a trained model, found " + name + ", which ";
    if (is_locked(folder / "lock"))
      throw std::invalid_argument(found + "is in training at " + share_logged(stored) + " of its steps");
    throw std::invalid_argument(found + (stored.failed.empty() ? "stopped at " : "failed at ") + share_logged(stored) +
                                " of its steps; lethe train " + (folder / "run.json").string() + " goes on");
  }
  return {stored.folder, stored.run};
}

}  // namespace

std::vector<fs::path> artefact_folders(const fs::path& models) {
  std::error_code fault, unreadable;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(models, fault))
    if (entry.is_directory(unreadable)) found.push_back(entry.path());
  if (fault && fault != std::errc::no_such_file_or_directory)
    throw std::runtime_error(models.string() + ": expected a folder of models, found " + fault.message());
  std::ranges::sort(found);
  return found;
}

std::string share_logged(const StoredArtefact& stored) {
  const nlohmann::json step = last_logged(stored.folder).value("step", nlohmann::json(-1));
  const double share =
      (step.is_number() ? step.get<double>() + 1 : 0) / static_cast<double>(stored.run.training.steps());
  return fixed(std::floor(100 * std::clamp(share, 0.0, 1.0)), 0) + " %";
}

std::vector<fs::path> finished_artefacts(const fs::path& models) {
  std::vector<fs::path> found = artefact_folders(models);
  std::erase_if(found, [](const fs::path& folder) { return !has_file(folder, "done.json"); });
  return found;
}

Artefact find_artefact(const fs::path& models, const std::string& name) {
  if (has_file(name, "done.json") || has_file(name, "run.json")) return whole(name);
  std::vector<fs::path> finished, begun;
  for (const fs::path& folder : artefact_folders(models)) {
    const std::string candidate = folder.filename();
    if (candidate == name) return whole(folder);
    if (!candidate.starts_with(name)) continue;
    if (has_file(folder, "done.json")) {
      finished.push_back(folder);
    } else if (has_file(folder, "run.json")) {
      begun.push_back(folder);
    }
  }
  if (finished.empty() && begun.size() == 1) return whole(begun.front());
  if (finished.size() != 1)
    throw std::invalid_argument(
        "artefact: expected the folder or name of a trained model (lethe list shows them), found '" + name +
        (finished.empty() ? "'" : "', which begins " + listed(finished, [](const fs::path& folder) {
                                    return folder.filename().string();
                                  })));
  return whole(finished.front());
}

}  // namespace lethe
