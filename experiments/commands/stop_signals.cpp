#include "experiments/commands/stop_signals.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <string_view>

#include "experiments/training/training.hpp"

namespace lethe {
namespace {

volatile sig_atomic_t came = 0;        // the first signal
volatile sig_atomic_t other_came = 0;  // whether one of the other kind has followed it
std::atomic<int64_t> first{0};         // when the first came, in ns
static_assert(std::atomic<int64_t>::is_always_lock_free);

constexpr std::string_view kInterrupt = "\nlethe: SIGINT: ends after the current step; a later one ends it at once\n";
constexpr std::string_view kTerminate = "lethe: SIGTERM: ends after the current step; a later one ends it at once\n";
// timeout(1) signals a process and then its group, and a farm passes on what its workers have had from a terminal: one request arrives as two.
constexpr int64_t kOneRequest = 500'000'000;

void note_one(int signal) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  if (int64_t none = 0; !first.compare_exchange_strong(none, now)) {
    if (now - none < kOneRequest) return;
    if (signal != came && !other_came) {
      other_came = 1;
      return;
    }
    std::signal(signal, SIG_DFL);
    static_cast<void>(std::raise(signal));  // after this handler
    return;
  }
  came = signal;
  const std::string_view text = signal == SIGINT ? kInterrupt : kTerminate;
  static_cast<void>(!write(STDERR_FILENO, text.data(), text.size()));
}

void note(int signal) {
  const int error = errno;
  note_one(signal);
  errno = error;
}

}  // namespace

StopSignals::StopSignals() {
  came = 0;
  first = 0;
  other_came = 0;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
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
