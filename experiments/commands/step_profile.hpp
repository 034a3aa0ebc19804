#pragma once
// Device time by operator.

#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <string>

namespace lethe {

/// Collects, while it lives, the time between the beginning and the end of each outermost operator, forward and backward, in all threads: on a GPU by
/// events in the stream, gaps inside an operator included; on a CPU by the clock. One at a time.
class StepProfile {
 public:
  explicit StepProfile(c10::Device device);
  ~StepProfile();
  StepProfile(const StepProfile&) = delete;
  StepProfile& operator=(const StepProfile&) = delete;

  struct Entry {
    double microseconds = 0;
    int64_t calls = 0;
  };
  /// By operator; waits for the device.
  std::map<std::string, Entry> entries();

 private:
  struct Collector;
  std::unique_ptr<Collector> collector_;
};

}  // namespace lethe
