#pragma once
// Folders as one compressed file, by the programs tar and xz.

#include <filesystem>
#include <functional>

namespace lethe {

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
