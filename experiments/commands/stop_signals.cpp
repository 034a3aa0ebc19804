#include "experiments/commands/stop_signals.hpp"

#include <unistd.h>

#include <string_view>

#include "experiments/training/training.hpp"

namespace lethe {
namespace {

volatile sig_atomic_t came = 0;

constexpr std::string_view kInterrupt = "\nlethe: SIGINT: ends after the current step; a second one ends it at once\n";
constexpr std::string_view kTerminate = "lethe: SIGTERM: ends after the current step; a second one ends it at once\n";

void note(int signal) {
  came = signal;
  const std::string_view text = signal == SIGINT ? kInterrupt : kTerminate;
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
}

}  // namespace

StopSignals::StopSignals() {
  came = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &interrupt_);
  sigaction(SIGTERM, &action, &terminate_);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
}

void StopSignals::check() {
  if (came != 0) throw Interrupted(came, came == SIGINT ? "SIGINT" : "SIGTERM");
}

}  // namespace lethe
