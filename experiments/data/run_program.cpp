#include "experiments/data/run_program.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
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

}  // namespace

ProgramFailed::ProgramFailed(const std::string& program, int status, std::string output)
    : std::runtime_error(program + ": expected exit status 0, found " + std::to_string(status)), status_(status),
      output_(std::move(output)) {}

std::string run_program(const std::vector<std::string>& arguments, const std::string& standard_input) {
  const File input = temporary_file(), output = temporary_file();
  std::fwrite(standard_input.data(), 1, standard_input.size(), input.get());
  std::rewind(input.get());

  std::vector<char*> argv;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(input.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(output.get()), STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error) throw std::runtime_error(arguments[0] + ": expected a program, found " + std::strerror(error));

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

}  // namespace lethe
