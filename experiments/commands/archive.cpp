#include "experiments/commands/archive.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "experiments/data/run_program.hpp"
#include "experiments/files.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

/// Runs tar; an error quotes the first line of what it said.
void tar(const fs::path& file, const std::string& expected, const std::vector<std::string>& arguments) {
  std::vector<std::string> call{"sh", "-c", "LC_ALL=C exec tar \"$@\" 2>&1", "tar"};
  call.insert(call.end(), arguments.begin(), arguments.end());
  try {
    run_program(call);
  } catch (const ProgramFailed& failure) {
    const std::string said = failure.output().substr(0, failure.output().find('\n'));
    throw std::runtime_error(file.string() + ": expected " + expected + ", found exit status " +
                             std::to_string(failure.status()) + " of tar, which needs xz" +
                             (said.empty() ? "" : " (" + as_utf8(said) + ")"));
  }
}

}  // namespace

void pack(const fs::path& folder, const fs::path& file) {
  const fs::path draft = fs::absolute(file.string() + ".new");
  tar(file, "a place to write an archive",
      {"--create", "--use-compress-program=xz --threads=0", "--sort=name", "--mtime=@0", "--owner=0", "--group=0",
       "--numeric-owner", "--directory", folder.string(), "--file", draft.string(), "."});
  sync_file(draft);
  fs::rename(draft, file);
}

void unpack(const fs::path& file, const fs::path& folder) {
  if (access(file.c_str(), R_OK) != 0)
    throw std::runtime_error(file.string() + ": cannot be read: " + std::strerror(errno));
  if (fs::is_directory(file)) throw std::runtime_error(file.string() + ": expected a file, found a folder");
  tar(file, "a tar.xz archive",
      {"--extract", "--xz", "--no-same-owner", "--no-same-permissions", "--directory", folder.string(), "--file",
       fs::absolute(file).string()});
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_symlink() || !(entry.is_regular_file() || entry.is_directory()))
      throw std::runtime_error(file.string() + ": expected files and folders alone, found " +
                               entry.path().lexically_relative(folder).string());
}

void naming_members(const fs::path& file, const fs::path& folder, const std::function<void()>& work) {
  const auto named = [&](std::string message) {
    const std::string begin = folder.string() + "/", name = file.string() + ": ";
    for (size_t at = 0; (at = message.find(begin, at)) != std::string::npos; at += name.size())
      message.replace(at, begin.size(), name);
    return message;
  };
  try {
    work();
  } catch (const fs::filesystem_error& error) {
    throw std::runtime_error(named(error.path1().string() + ": cannot be used: " + error.code().message()));
  } catch (const nlohmann::json::exception&) {
    throw std::invalid_argument(file.string() +
                                ": expected the members that lethe writes, found one absent or another");
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(named(error.what()));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(named(error.what()));
  }
}

}  // namespace lethe
