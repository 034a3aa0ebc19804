#pragma once
// A device with part of its multiprocessors occupied.

#include <cuda_runtime.h>

namespace lethe::testing {

/// Holds all multiprocessors but some, each by a CTA that leaves no shared memory to others, until they are released, or for ten seconds.
class HeldMultiprocessors {
 public:
  /// Returns when they are held.
  explicit HeldMultiprocessors(int left_free);
  ~HeldMultiprocessors();
  HeldMultiprocessors(const HeldMultiprocessors&) = delete;
  HeldMultiprocessors& operator=(const HeldMultiprocessors&) = delete;

  /// Releases them. Returns whether all of them were held until now.
  bool release();

 private:
  cudaStream_t stream_ = nullptr;
  int held_;
  // On the host: whether the hold is over; for each CTA, whether it has begun, and whether it has ended.
  volatile int* flags_ = nullptr;
};

}  // namespace lethe::testing
