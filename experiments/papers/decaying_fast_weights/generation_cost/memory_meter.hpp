#pragma once
// A meter of the bytes of live tensors, as Torch's allocators report them.

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace lethe::generation_cost {

/// Counts the allocations and releases of Torch's allocators in this thread during the meter's lifetime, on the CPU and on a GPU,
/// through the hook of Torch's profiler. Earlier allocations and those of other threads aren't counted: limit Torch to one thread
/// where an operator has scratch memory per thread.
class MemoryMeter {
 public:
  MemoryMeter();

  int64_t live() const;  ///< bytes of the tensors alive
  int64_t peak() const;  ///< the maximum of `live` since construction or the last restart_peak()
  void restart_peak();

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace lethe::generation_cost
