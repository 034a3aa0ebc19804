#pragma once
// How many bytes of tensors are alive, as Torch's allocators tell it.

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace lethe::generation_cost {

/// Counts what Torch's allocators hand out and take back in this thread while the meter lives, on the CPU and on a GPU: from
/// the hook that Torch's own profiler uses. What was made before isn't counted, what other threads make neither: hold Torch
/// to one thread meanwhile where an operator has scratch memory for each.
class MemoryMeter {
 public:
  MemoryMeter();

  int64_t live() const;  ///< bytes of the tensors alive
  int64_t peak() const;  ///< the most that `live` has been since the beginning, or since restart_peak()
  void restart_peak();

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace lethe::generation_cost
