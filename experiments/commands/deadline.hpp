#pragma once
// --until: the time that a call may take.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>

#include "experiments/commands/checks.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

constexpr int kContinues = 75;  ///< the exit status of a call that its deadline ended: EX_TEMPFAIL of sysexits.h

/// A number of seconds from this object's construction; without --until there is no end.
class Deadline {
 public:
  /// Adds --until SECONDS.
  void add_to(CLI::App& command) {
    command
        .add_option("--until", seconds_,
                    "Seconds from now after which a training writes a checkpoint and the call ends with status 75; the "
                    "same call goes on there")
        ->check(number_between(0))
        ->take_last();
  }

  /// Seconds until the end; infinite without one, 0 after it.
  double left() const {
    return std::max(0.0, seconds_ - std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }

  /// throws  Interrupted (training.hpp) after the end
  void check() const {
    if (left() == 0) throw Interrupted(Interrupted::kDeadline, "continues");
  }

 private:
  double seconds_ = std::numeric_limits<double>::infinity();
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace lethe
