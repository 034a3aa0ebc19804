#include "experiments/commands/progress_line.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iostream>

namespace lethe {

ProgressLine::ProgressLine(const Deadline& deadline, bool quiet)
    : deadline_(deadline), quiet_(quiet), terminal_(!quiet && isatty(STDERR_FILENO)) {}

ProgressLine::~ProgressLine() {
  if (terminal_) std::cerr << "\r\x1b[K" << std::flush;
}

void ProgressLine::show(const Progress& progress) {
  if (progress.notice.empty()) return show(described(progress));
  if (notices_.insert(progress.notice).second)
    std::cerr << (terminal_ ? "\r\x1b[K" : "") << "lethe: " << progress.notice << std::endl;
  StopSignals::check();  // the deadline ends a training after a step of its own
}

void ProgressLine::check() const {
  StopSignals::check();
  deadline_.check();
}

void ProgressLine::show(const std::string& text) {
  check();
  if (quiet_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - shown_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000))) return;
  shown_ = now;
  if (terminal_) std::cerr << '\r' << text << "\x1b[K" << std::flush;
  else std::cerr << text << std::endl;
}

void ProgressLine::keep(const std::string& text) { std::cerr << (terminal_ ? "\r\x1b[K" : "") << text << std::endl; }

std::string described(const Progress& progress) {
  char text[160];
  std::snprintf(text, sizeof text, "step %lld of %lld, loss %.4f, ", static_cast<long long>(progress.step),
                static_cast<long long>(progress.steps), progress.loss);
  return text + speed_of(progress) + ", " + duration(progress.seconds_left) + " left";
}

std::string speed_of(const Progress& progress) {
  char text[80];
  std::snprintf(text, sizeof text, "%.0f tokens/s", progress.tokens_per_second);
  std::string speed = text;
  const auto& [limit, prunes] = progress.limit;
  if (!std::isfinite(limit)) return speed;
  std::snprintf(text, sizeof text, " (%.0f %% of the limit%s)", 100 * progress.tokens_per_second / limit,
                prunes ? " without pruning" : "");
  return speed + text;
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto whole = std::llround(seconds);
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
}

}  // namespace lethe
