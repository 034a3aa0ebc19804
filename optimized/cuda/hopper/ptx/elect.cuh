#pragma once
// One lane of a warp.

#include <cstdint>

namespace lethe::ptx {

/// Of one lane of the warp, always the same one: true. The compiler knows that it is one alone, and issues a copy without a loop over lanes.
__device__ inline bool elect() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

}  // namespace lethe::ptx
