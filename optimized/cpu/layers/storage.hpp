#pragma once
// The types that the layers' kernels read and write, for files that are compiled once for each instruction set and share nothing (tile_kernels.cpp).
// Arithmetic is float, or double for double; conversions from and to 16 bits are integer operations, which every instruction set vectorises.

#include <cstdint>
#include <cstring>

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <typename Stored>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};
template <typename Stored>
using Wide = typename WideOf<Stored>::Type;

#define LETHE_INLINE inline __attribute__((always_inline))

LETHE_INLINE float float_of(uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

LETHE_INLINE uint32_t bits_of(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

LETHE_INLINE double widened(double stored) { return stored; }
LETHE_INLINE float widened(float stored) { return stored; }
LETHE_INLINE float widened(BFloat16 stored) { return float_of(uint32_t{stored.bits} << 16); }
LETHE_INLINE float widened(Float16 stored) {
  const uint32_t sign = (stored.bits & 0x8000u) << 16, magnitude = (stored.bits & 0x7fffu) << 13;
  const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);  // the exponents' biases are 127 and 15
  return float_of(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
}

// To nearest, ties to even.
LETHE_INLINE void store(double number, double& to) { to = number; }
LETHE_INLINE void store(float number, float& to) { to = number; }
LETHE_INLINE void store(float number, BFloat16& to) {
  const uint32_t bits = bits_of(number), rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  to.bits = static_cast<uint16_t>(number != number ? 0x7fc0u : rounded >> 16);
}
LETHE_INLINE void store(float number, Float16& to) {
  const uint32_t bits = bits_of(number), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);  // one unit of 0.5 is 2⁻²⁴
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;            // below 2⁻¹⁴
  const uint32_t unsigned_bits = magnitude > 0x7f800000u ? 0x7e00u : magnitude >= 0x477ff000u ? 0x7c00u : finite;
  to.bits = static_cast<uint16_t>(unsigned_bits | ((bits >> 16) & 0x8000u));
}

}  // namespace
}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
