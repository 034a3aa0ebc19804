#pragma once
// Files that a crash leaves whole, and a lock that a crash releases.

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace lethe {

/// A file for output, e.g. one that a user named. The constructor shows whether it can be written; nothing is left of it before
/// `commit`.
///
/// A regular file is written to "<path>.new" and renamed: `path` is always the old or the new file. A link stays, and its target
/// is written. A device or pipe, and /dev/stdout, is never replaced: the bytes go into it.
class OutputFile {
 public:
  /// throws  std::runtime_error naming the file where it can't be written
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Writes the pieces one after the other, waits for the disk, and renames.
  ///
  /// throws  std::runtime_error naming the file; the old file is then as it was
  void commit(std::span<const std::string_view> pieces) const;
  void commit(std::initializer_list<std::string_view> pieces) const {
    commit(std::span(pieces.begin(), pieces.size()));
  }

 private:
  std::filesystem::path path_, draft_;
  int stream_ = -1;  // of a device or pipe
};

/// OutputFile(path).commit({bytes}).
void write_whole(const std::filesystem::path& path, std::string_view bytes);

/// Waits until the bytes of a file are on the disk.
///
/// throws  std::runtime_error naming the file
void sync_file(const std::filesystem::path& path);

/// The bytes of a regular file.
///
/// throws  std::runtime_error naming the file
std::string read_whole(const std::filesystem::path& path);

/// Holds a lock file until the object is destroyed or its process ends, even by a crash. The file has the holder's process number.
class FileLock {
 public:
  /// Waits until no other process or object holds it.
  ///
  /// reads  waiting: called every tenth of a second with the holder's process number; its exceptions end the waiting
  explicit FileLock(const std::filesystem::path& path,
                    const std::function<void(const std::string& holder)>& waiting = {});
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

/// Whether a process or object holds the lock file. False where the file is absent or can't be opened.
bool is_locked(const std::filesystem::path& path);

}  // namespace lethe
