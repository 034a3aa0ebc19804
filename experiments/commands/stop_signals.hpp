#pragma once
// SIGINT and SIGTERM as a request to end in good order.

#include <signal.h>

namespace lethe {

/// While one exists, SIGINT and SIGTERM are noted, and a line on standard error says so; a second signal, half a second later or more, ends the
/// process at once: who signals a process and its group sends one request twice.
/// One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// throws  Interrupted (training.hpp) where a signal has come
  static void check();

 private:
  struct sigaction interrupt_, terminate_;  // the previous actions
};

}  // namespace lethe
