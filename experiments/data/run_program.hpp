#pragma once
// Other programs: the Python tools of this project.

#include <sys/types.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace lethe {

/// A program ended with a status other than 0. The program has written the reason to standard error: callers don't repeat it.
class ProgramFailed : public std::runtime_error {
 public:
  ProgramFailed(const std::string& program, int status, std::string output = {});
  int status() const { return status_; }                 ///< the exit status; 128 + the signal where a signal ended it
  const std::string& output() const { return output_; }  ///< what it had written to standard output

 private:
  int status_;
  std::string output_;
};

/// Runs a program without a shell and waits for it; it inherits our standard error.
///
/// reads    arguments: the first of them is the program, found on PATH where it has no slash
///          standard_input: the program's standard input
/// returns  the program's standard output
/// throws   ProgramFailed; std::runtime_error where it can't be started
std::string run_program(const std::vector<std::string>& arguments, const std::string& standard_input = {});

/// Starts a program without a shell; it inherits our standard streams.
///
/// reads    arguments: as run_program
/// returns  the process, for waitpid
/// throws   std::runtime_error where it can't be started
pid_t start_program(const std::vector<std::string>& arguments);

/// This process's program and arguments, the program by its whole path.
std::vector<std::string> own_arguments();

}  // namespace lethe
