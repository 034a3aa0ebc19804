#pragma once
// Other programs: the tools of this project that are written in Python.

#include <stdexcept>
#include <string>
#include <vector>

namespace lethe {

/// A program that ended with another status than 0. It has told why on standard error, so nobody has to say it again.
class ProgramFailed : public std::runtime_error {
 public:
  ProgramFailed(const std::string& program, int status);
  int status() const { return status_; }  ///< what it exited with, 128 + the signal where one ended it

 private:
  int status_;
};

/// Runs a program without a shell and waits for it; its standard error is ours.
///
/// reads    arguments: the first of them is the program, found on PATH where it has no slash
///          standard_input: what the program finds on its standard input
/// returns  what it wrote to standard output
/// throws   ProgramFailed; std::runtime_error where it can't be started
std::string run_program(const std::vector<std::string>& arguments, const std::string& standard_input = {});

}  // namespace lethe
