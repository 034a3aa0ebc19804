#pragma once
// Numbers too small for a normalised mantissa.

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace lethe::cpu {

/// During its lifetime, results of this thread below the smallest normal number (1.2e-38 in float32, 2.2e-308 in float64) are 0. A forget gate
/// produces such numbers everywhere: weights near e^−87 times a small value, states that only decay. Intel's cores take more than a hundred cycles
/// for an operation on one; a matrix product over a tile with some took five times as long. Beside the sums of ordinary size that they enter they are
/// negligible. Does nothing on processors other than x86.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(mode()) { set_mode(before_ | kFlushResults); }
  ~FlushSubnormals() { set_mode(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__SSE__)
  static constexpr unsigned kFlushResults = _MM_FLUSH_ZERO_ON;
  static unsigned mode() { return _mm_getcsr(); }
  static void set_mode(unsigned mode) { _mm_setcsr(mode); }
#else
  static constexpr unsigned kFlushResults = 0;
  static unsigned mode() { return 0; }
  static void set_mode(unsigned) {}
#endif
  unsigned before_;
};

}  // namespace lethe::cpu
