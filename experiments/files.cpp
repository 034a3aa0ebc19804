#include "experiments/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace lethe {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  throw std::runtime_error(path.string() + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

void write_whole(const std::filesystem::path& path, std::string_view bytes) {
  const std::filesystem::path draft = path.string() + ".new";
  const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail(draft, "cannot be opened");
  bool good = true;
  while (good && !bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    good = written >= 0 || errno == EINTR;
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
  good = good && fsync(file) == 0;
  good = close(file) == 0 && good;
  if (!good) fail(draft, "cannot be written");
  std::filesystem::rename(draft, path);
}

std::string read_whole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path, "cannot be read");
  std::string bytes(std::filesystem::file_size(path), '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) fail(path, "cannot be read to its end");
  return bytes;
}

FileLock::FileLock(const std::filesystem::path& path)
    : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail(path, "cannot be opened");
  while (flock(descriptor_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    close(descriptor_);
    fail(path, "cannot be locked");
  }
}

FileLock::~FileLock() { close(descriptor_); }

bool is_locked(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool held = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(file);
  return held;
}

}  // namespace lethe
