#pragma once
// The progress line of a long command.

#include <chrono>
#include <string>

#include "experiments/training/training.hpp"

namespace lethe {

/// On a terminal one line that is rewritten in place, at most ten times a second; elsewhere (a log) a plain line every
/// five seconds. It is written to standard error, so that standard output holds results alone.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();  ///< clears the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const std::string& text);

 private:
  bool terminal_;
  std::chrono::steady_clock::time_point shown_{};
};

/// "step 12 of 256, loss 2.1034, 41000 tokens/s, 3 min 20 s left".
std::string described(const Progress& progress);

/// "42 s", "3 min 20 s", "5 h 12 min"; "?" for a value that is not finite.
std::string duration(double seconds);

}  // namespace lethe
