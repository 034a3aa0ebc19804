#pragma once
// The progress line of a long command.

#include <chrono>
#include <set>
#include <string>

#include "experiments/commands/deadline.hpp"
#include "experiments/commands/stop_signals.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// On a terminal one line that is rewritten in place, at most ten times a second; elsewhere (a log) a plain line every
/// five seconds. It is written to standard error, so that standard output holds results alone. While it exists, SIGINT and
/// SIGTERM end the work at its next report.
class ProgressLine {
 public:
  /// reads  deadline: ends the work as a signal does; quiet: only notices are shown
  explicit ProgressLine(const Deadline& deadline = {}, bool quiet = false);
  ~ProgressLine();  ///< clears the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// throws  Interrupted where a signal has come, or after the deadline
  void show(const std::string& text);
  /// A notice is a line of its own that stays; each is shown once.
  void show(const Progress& progress);
  /// A line that stays.
  void keep(const std::string& text);

 private:
  void check() const;

  StopSignals signals_;
  Deadline deadline_;
  bool quiet_, terminal_;
  std::set<std::string> notices_;
  std::chrono::steady_clock::time_point shown_{};
};

/// "step 12 of 256, loss 2.1034, 41000 tokens/s (53 % of the limit), 3 min 20 s left".
std::string described(const Progress& progress);

/// "41000 tokens/s (53 % of the limit)", of a training that prunes "of the limit without pruning"; the share where the limit is known.
std::string speed_of(const Progress& progress);

/// "42 s", "3 min 20 s", "5 h 12 min"; "?" for a value that is not finite.
std::string duration(double seconds);

}  // namespace lethe
