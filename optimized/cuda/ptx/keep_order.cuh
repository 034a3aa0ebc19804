#pragma once
// A place in a kernel that ptxas moves nothing across.

#include <cstdint>

namespace lethe::ptx {

/// Keeps ptxas from moving instructions across this point, which an empty assembly does not: a loop that is never entered, at which its blocks end.
/// Work meant to run during a wait would otherwise be moved before the issue of the instruction waited for, and work meant to run under products
/// after the last of them. Two instructions. `number` is none of 2¹⁶ to 2¹⁶ + 2¹⁵, or the thread may wait forever, and is opaque to the compiler;
/// ptxas merges two places of a function that have the same kPlace.
template <int kPlace>
__device__ __forceinline__ void keep_order(uint32_t number) {
  static_assert(0 <= kPlace && kPlace <= 1 << 15);
  asm volatile(
      "{\n.reg .pred p;\n"
      "AGAIN_%=: setp.ne.u32 p, %0, %1;\n@p bra ON_%=;\nnanosleep.u32 1;\nbra AGAIN_%=;\nON_%=:\n}" ::"r"(number),
      "n"(0x10000 + kPlace)
      : "memory");
}

}  // namespace lethe::ptx
