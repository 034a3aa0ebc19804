#pragma once
// A device of which others have taken a part.

#include <cuda_runtime.h>

namespace lethe::testing {

/// Takes all multiprocessors but some, each for a CTA that leaves no shared memory to others, until they are released, or for ten seconds.
class HeldMultiprocessors {
 public:
  /// Returns when they are held.
  explicit HeldMultiprocessors(int left_free);
  ~HeldMultiprocessors();
  HeldMultiprocessors(const HeldMultiprocessors&) = delete;
  HeldMultiprocessors& operator=(const HeldMultiprocessors&) = delete;

  /// Lets them go. Were all of them held until now?
  bool release();

 private:
  cudaStream_t stream_ = nullptr;
  int held_;
  // On the host: is it over; of each CTA, has it begun; and has it ended?
  volatile int* flags_ = nullptr;
};

}  // namespace lethe::testing
