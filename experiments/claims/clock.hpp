#pragma once
// The progress of a job.

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>

#include "experiments/claims/job.hpp"

namespace lethe {

/// The share of the work that is done, and the time left at the mean speed; reported by several threads.
class Clock {
 public:
  Clock(double work, std::function<void(const JobProgress&)> report) : work_(work), report_(std::move(report)) {}

  /// Reports the progress of a named piece of the work.
  void begun(const std::string& what, double work, const Progress& training = {}) {
    const std::scoped_lock lock(mutex_);
    begun_[what] = work;
    tell(what, training);
  }

  /// Forwards a training's notice.
  void notice(const Progress& training) {
    const std::scoped_lock lock(mutex_);
    tell("", training);
  }

  /// Reports that a piece of the work is finished.
  void done(const std::string& what, double work) {
    const std::scoped_lock lock(mutex_);
    begun_.erase(what);
    done_ += work;
    tell(what, {});
  }

 private:
  void tell(const std::string& what, const Progress& training) const {
    if (!report_) return;
    double now = done_;
    for (const auto& [_, work] : begun_) now += work;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double left =
        now > 0 ? std::max(0.0, passed.count() * (work_ - now) / now) : std::numeric_limits<double>::quiet_NaN();
    report_({what, now / work_, left, training});
  }

  double work_, done_ = 0;
  std::map<std::string, double> begun_;
  std::function<void(const JobProgress&)> report_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
};

}  // namespace lethe
