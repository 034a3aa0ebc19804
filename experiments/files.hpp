#pragma once
// Files that a crash leaves whole, and a lock that a crash gives back.

#include <filesystem>
#include <string>
#include <string_view>

namespace lethe {

/// Writes `bytes` beside `path`, waits for the disk, and renames: at every moment `path` is the old file or the new
/// one.
///
/// throws  std::runtime_error naming the file
void write_whole(const std::filesystem::path& path, std::string_view bytes);

/// The bytes of a file.
///
/// throws  std::runtime_error naming the file
std::string read_whole(const std::filesystem::path& path);

/// Holds a lock file until it goes out of scope or its process ends, however that ends.
class FileLock {
 public:
  /// Waits until nobody else holds it.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace lethe
