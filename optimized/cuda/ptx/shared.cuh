#pragma once
// Words of shared memory by the 32-bit addresses of ptx/address.cuh.

#include <cstdint>

namespace lethe::ptx {

__device__ inline uint32_t load_word(uint32_t shared) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(shared) : "memory");
  return word;
}

__device__ inline void store_word(uint32_t shared, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(word) : "memory");
}

/// Two floats; the address is a multiple of 8.
__device__ inline float2 load_floats(uint32_t shared) {
  float2 floats;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(floats.x), "=f"(floats.y) : "r"(shared) : "memory");
  return floats;
}

__device__ inline void store_floats(uint32_t shared, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}

/// Four words; the address is a multiple of 16.
__device__ inline uint4 load_words(uint32_t shared) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(shared)
               : "memory");
  return words;
}

__device__ inline void store_words(uint32_t shared, uint4 words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
}
/// The same where `there`: a predicate, no branch, so that what makes the words stays among other instructions.
__device__ inline void store_words_where(bool there, uint32_t shared, uint4 words) {
  asm volatile(
      "{\n\t.reg .pred there;\n\tsetp.ne.u32 there, %5, 0;\n\t@there st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n\t}" ::"r"(
          shared),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w), "r"(static_cast<uint32_t>(there))
      : "memory");
}

}  // namespace lethe::ptx
