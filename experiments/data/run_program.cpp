#include "experiments/data/run_program.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

extern char** environ;

namespace lethe {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Input and output go through unnamed files: a pipe could block both sides at once.
File temporary_file() {
  File file(std::tmpfile(), std::fclose);
  if (!file) throw std::runtime_error(std::string("temporary file: expected one, found ") + std::strerror(errno));
  return file;
}

pid_t spawn(const std::vector<std::string>& arguments, const posix_spawn_file_actions_t* actions) {
  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  if (const int error = posix_spawnp(&child, argv[0], actions, nullptr, argv.data(), environ))
    throw std::runtime_error(arguments[0] + ": expected a program, found " + std::strerror(error));
  return child;
}

}  // namespace

ProgramFailed::ProgramFailed(const std::string& program, int status, std::string output)
    : std::runtime_error(program + ": expected exit status 0, found " + std::to_string(status)), status_(status),
      output_(std::move(output)) {}

std::string run_program(const std::vector<std::string>& arguments, const std::string& standard_input) {
  const File input = temporary_file(), output = temporary_file();
  std::fwrite(standard_input.data(), 1, standard_input.size(), input.get());
  std::rewind(input.get());

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(input.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(output.get()), STDOUT_FILENO);
  const auto destroy = [](posix_spawn_file_actions_t* used) { posix_spawn_file_actions_destroy(used); };
  const std::unique_ptr<posix_spawn_file_actions_t, decltype(destroy)> owner(&actions, destroy);
  const pid_t child = spawn(arguments, &actions);

  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::rewind(output.get());
  std::string text;
  char buffer[65536];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, output.get())) > 0;) text.append(buffer, n);
  if (WIFSIGNALED(status)) throw ProgramFailed(arguments[0], 128 + WTERMSIG(status), text);
  if (WEXITSTATUS(status) != 0) throw ProgramFailed(arguments[0], WEXITSTATUS(status), text);
  return text;
}

pid_t start_program(const std::vector<std::string>& arguments) { return spawn(arguments, nullptr); }

std::vector<std::string> own_arguments() {
  std::ifstream line("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(line, argument, '\0');) arguments.push_back(argument);
  arguments.at(0) = std::filesystem::canonical("/proc/self/exe").string();
  return arguments;
}

}  // namespace lethe
