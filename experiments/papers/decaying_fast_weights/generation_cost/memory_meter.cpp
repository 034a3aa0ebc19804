#include "experiments/papers/decaying_fast_weights/generation_cost/memory_meter.hpp"

#include <c10/core/Allocator.h>

#include <algorithm>

namespace lethe::generation_cost {

class MemoryMeter::Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live += bytes;  // negative for a release
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0, peak = 0;
};

MemoryMeter::MemoryMeter()
    : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

int64_t MemoryMeter::live() const { return counter_->live; }
int64_t MemoryMeter::peak() const { return counter_->peak; }
void MemoryMeter::restart_peak() { counter_->peak = counter_->live; }

}  // namespace lethe::generation_cost
