#pragma once
// Temporary folders, a check of folders, and folders as one compressed file by the programs tar and xz.

#include <filesystem>
#include <functional>
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

/// Writes the contents of `folder` to a tar.xz file, the same bytes for the same files.
///
/// throws  std::runtime_error naming the file, also where tar or xz is absent
void pack(const std::filesystem::path& folder, const std::filesystem::path& file);

/// Reads such a file back into an empty folder.
///
/// throws  std::runtime_error naming a file that is absent, truncated or damaged, or holds more than files and folders
void unpack(const std::filesystem::path& file, const std::filesystem::path& folder);

/// Calls `work` on the unpacked folder of a file; its errors name "FILE: MEMBER" in place of the folder's files.
void naming_members(const std::filesystem::path& file, const std::filesystem::path& folder,
                    const std::function<void()>& work);

}  // namespace lethe
