#pragma once
// exp of the kernel files, which are compiled once for each instruction set and share nothing: see tile_kernels.cpp.

#include <cstdint>
#include <cstring>
#include <numbers>

namespace lethe::cpu::LETHE_INSTRUCTION_SET {
namespace {

template <typename Scalar>
struct Format;
template <>
struct Format<float> {
  using Bits = int32_t;
  static constexpr int kMantissa = 23, kTerms = 7;
  static constexpr float kRounder = 0x1.8p23f, kLowest = -88.0f, kLog2High = 0x1.62e4p-1f, kLog2Low = 0x1.7f7d1cp-20f;
};
template <>
struct Format<double> {
  using Bits = int64_t;
  static constexpr int kMantissa = 52, kTerms = 13;
  static constexpr double kRounder = 0x1.8p52, kLowest = -709.0, kLog2High = 0x1.62e42fefap-1,
                          kLog2Low = 0x1.cf79abc9e3b39p-40;
};

template <typename Scalar>
constexpr Scalar inverse_factorial(int n) {
  double factorial = 1.0;
  for (int i = 2; i <= n; ++i) factorial *= i;
  return static_cast<Scalar>(1.0 / factorial);
}

// e^x of a number or a vector of numbers for x ≤ 0 and not much above, by e^x = 2^n e^r with |r| ≤ ln 2 / 2 and Taylor's polynomial; NaN stays NaN.
// At kLowest and below, where the result would be subnormal, which costs a hundred times more to compute with, it is 0: the bits of 2^n are then 0.
template <typename Scalar, typename Value, typename Bits>
inline __attribute__((always_inline)) Value exponential_of(Value x) {
  using F = Format<Scalar>;
  const Value lowest = Value{} + F::kLowest;
  x = x < lowest ? lowest : x;
  const Value shifted = x * std::numbers::log2e_v<Scalar> + F::kRounder;  // its low bits hold n
  const Value n = shifted - F::kRounder;
  const Value r = (x - n * F::kLog2High) - n * F::kLog2Low;
  Value polynomial = Value{} + inverse_factorial<Scalar>(F::kTerms);
#pragma GCC unroll 16
  for (int term = F::kTerms - 1; term >= 0; --term) polynomial = polynomial * r + inverse_factorial<Scalar>(term);
  Bits bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  const Scalar one = 1;
  typename F::Bits one_bits;
  std::memcpy(&one_bits, &one, sizeof one_bits);
  const Bits power_bits = (bits << F::kMantissa) + one_bits;
  Value power;
  std::memcpy(&power, &power_bits, sizeof power);
  return polynomial * power;
}

template <typename Scalar>
inline __attribute__((always_inline)) Scalar exponential(Scalar x) {
  return exponential_of<Scalar, Scalar, typename Format<Scalar>::Bits>(x);
}

}  // namespace
}  // namespace lethe::cpu::LETHE_INSTRUCTION_SET
