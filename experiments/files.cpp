#include "experiments/files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>
#include <utility>

namespace lethe {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw std::runtime_error(path.string() + ": " + what + ": " + std::strerror(errno));
}

// A file descriptor that is closed at the end, at the latest.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  void release() { number_ = -1; }
  bool close() { return number_ < 0 || ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool lies_below(const fs::path& path, const char* folder) {
  return fs::absolute(path).lexically_normal().string().starts_with(std::string(folder) + "/");
}

// A device, a pipe or a socket, not a regular file or an absent one. What /dev/stdout leads to may be a regular file: its place
// within that file is known to the standard output alone.
bool is_stream(const fs::path& path) {
  return lies_below(path, "/dev") || lies_below(path, "/proc") || (fs::exists(path) && !fs::is_regular_file(path));
}

// A pipe without a reader is an error in place of a wait.
int open_stream(const fs::path& path) {
  if (fs::absolute(path).lexically_normal() == "/dev/stdout") return dup(STDOUT_FILENO);
  const int stream = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (stream >= 0) fcntl(stream, F_SETFL, 0);
  return stream;
}

int open_draft(const fs::path& draft) { return open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644); }

}  // namespace

OutputFile::OutputFile(const fs::path& path) : path_(path) {
  if (fs::is_directory(path)) throw std::runtime_error(path.string() + ": expected a file, found a folder");
  if (is_stream(path)) {
    stream_ = open_stream(path);
    if (stream_ < 0) fail(path, "cannot be opened");
    return;
  }
  if (fs::is_symlink(path)) path_ = fs::weakly_canonical(path.parent_path() / fs::read_symlink(path));
  if (fs::exists(path_) && access(path_.c_str(), W_OK) != 0) fail(path_, "cannot be written");
  draft_ = path_.string() + ".new";
  if (Descriptor(open_draft(draft_)).number() < 0) fail(draft_, "cannot be opened");
  unlink(draft_.c_str());
}

OutputFile::~OutputFile() {
  if (stream_ >= 0) close(stream_);
}

void OutputFile::commit(std::span<const std::string_view> pieces) const {
  const auto written = [&](int descriptor) {
    return std::ranges::all_of(pieces, [&](std::string_view piece) { return write_all(descriptor, piece); });
  };
  if (stream_ >= 0) {
    std::fflush(stdout);  // which the stream may be
    if (!written(stream_)) fail(path_, "cannot be written");
    return;
  }
  Descriptor file(open_draft(draft_));
  if (file.number() < 0) fail(draft_, "cannot be opened");
  bool good = written(file.number()) && fsync(file.number()) == 0;
  good = file.close() && good;
  if (good && rename(draft_.c_str(), path_.c_str()) == 0) return;
  const int reason = errno;
  unlink(draft_.c_str());
  errno = reason;
  fail(path_, "cannot be written");
}

void write_whole(const fs::path& path, std::string_view bytes) { OutputFile(path).commit({bytes}); }

void sync_file(const fs::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number() < 0 || fsync(file.number()) != 0) fail(path, "cannot be written");
}

std::string read_whole(const fs::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // a pipe without a writer has no bytes
  if (file.number() < 0) fail(path, "cannot be read");
  if (!fs::is_regular_file(path)) throw std::runtime_error(path.string() + ": expected a regular file, found another");
  std::string bytes(fs::file_size(path), '\0');
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = read(file.number(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot be read to its end");
    if (got == 0) bytes.resize(done);  // it became shorter
    done += static_cast<size_t>(got);
  }
  return bytes;
}

FileLock::FileLock(const fs::path& path, const std::function<void(const std::string&)>& waiting)
    : descriptor_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) fail(path, "cannot be opened");
  Descriptor until_held(descriptor_);
  while (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail(path, "cannot be locked");
    std::array<char, 24> text{};
    const ssize_t read = pread(descriptor_, text.data(), text.size() - 1, 0);
    if (waiting) waiting(read > 0 ? std::string(text.data()) : "unknown");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const std::string holder = std::to_string(getpid());
  if (ftruncate(descriptor_, 0) == 0) static_cast<void>(!pwrite(descriptor_, holder.data(), holder.size(), 0));
  until_held.release();
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
