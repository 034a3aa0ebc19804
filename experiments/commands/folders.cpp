#include "experiments/commands/folders.hpp"

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace lethe {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder(const fs::path& parent) {
  fs::create_directories(parent);
  std::string name = (parent / "lethe-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error(parent.string() + ": expected a folder to write in");
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code unremovable;
  fs::remove_all(path_, unremovable);
}

void expect_folder_to_write(const std::string& name, const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> absent;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, ignored) && at != at.root_path(); at = at.parent_path())
    absent.push_back(at);
  try {
    const ScratchFolder probe(folder);
  } catch (const std::exception&) {
    throw std::invalid_argument(name + ": expected a folder to write in, found " + folder.string());
  }
  for (const fs::path& made : absent) fs::remove(made, ignored);  // the work makes them once it has something to write
}

}  // namespace lethe
