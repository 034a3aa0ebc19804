#pragma once
// Files that a crash leaves whole, and a lock that a crash releases.

#include <filesystem>
#include <string>
#include <string_view>

namespace lethe {

/// Writes `bytes` to a temporary file beside `path`, waits for the disk, and renames: `path` is always the old or the new file.
///
/// throws  std::runtime_error naming the file
void write_whole(const std::filesystem::path& path, std::string_view bytes);

/// The bytes of a file.
///
/// throws  std::runtime_error naming the file
std::string read_whole(const std::filesystem::path& path);

/// Holds a lock file until the object is destroyed or its process ends, even by a crash.
class FileLock {
 public:
  /// Waits until no other process or object holds it.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

/// Whether a process or object holds the lock file. False where the file is absent or can't be opened.
bool is_locked(const std::filesystem::path& path);

}  // namespace lethe
