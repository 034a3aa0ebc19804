#pragma once
// SIGINT and SIGTERM as a request to end in good order.

#include <signal.h>

namespace lethe {

/// While one exists, SIGINT and SIGTERM are noted, and a line on standard error says so. The same signal half a second later or more ends the process
/// at once, not one that comes sooner, nor the first of the other kind: one request may arrive as two signals.
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
