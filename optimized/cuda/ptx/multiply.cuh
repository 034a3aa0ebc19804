#pragma once
// Multiplication under a predicate.

#include <cstdint>

namespace lethe::ptx {

/// x *= factor where `first`, else y *= factor: two instructions without a branch, where a choice by lane would select both products.
__device__ inline void multiply_one(bool first, float& x, float& y, float factor) {
  asm("{\n"
      ".reg .pred first;\n"
      "setp.ne.u32 first, %2, 0;\n"
      "@first mul.f32 %0, %0, %3;\n"
      "@!first mul.f32 %1, %1, %3;\n"
      "}"
      : "+f"(x), "+f"(y)
      : "r"(static_cast<uint32_t>(first)), "f"(factor));
}

}  // namespace lethe::ptx
