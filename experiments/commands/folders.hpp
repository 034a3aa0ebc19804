#pragma once
// Temporary folders, and whether a folder can be written.

#include <filesystem>
#include <string>

namespace lethe {

/// An empty folder below `parent`, removed at the end.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Tries to make the folder and a folder in it, and removes what it made: before work whose results belong there.
///
/// throws  std::invalid_argument "name: expected …" where it is no folder, or can't be written
void expect_folder_to_write(const std::string& name, const std::filesystem::path& folder);

}  // namespace lethe
