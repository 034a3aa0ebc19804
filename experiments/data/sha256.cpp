#include "experiments/data/sha256.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace lethe {
namespace {

constexpr int kRounds = 64, kWords = 16, kBlock = 64;

/// The first 32 bits of the fraction of a real number. Roots of small primes are exact enough in long double: 64 bits.
uint32_t fraction_bits(long double x) { return static_cast<uint32_t>((x - std::floor(x)) * 4294967296.0L); }

/// The standard's constants are defined by the first 64 primes; computing them is shorter than listing them.
struct Constants {
  std::array<uint32_t, kRounds> round;  // cube roots
  std::array<uint32_t, 8> initial;      // square roots

  Constants() {
    int found = 0;
    for (int n = 2; found < kRounds; ++n) {
      bool prime = true;
      for (int d = 2; d * d <= n; ++d) prime = prime && n % d != 0;
      if (!prime) continue;
      round[found] = fraction_bits(std::cbrt(static_cast<long double>(n)));
      if (found < 8) initial[found] = fraction_bits(std::sqrt(static_cast<long double>(n)));
      ++found;
    }
  }
};

void compress(std::array<uint32_t, 8>& state, const unsigned char* block,
              const std::array<uint32_t, kRounds>& constants) {
  std::array<uint32_t, kRounds> w;
  for (int t = 0; t < kWords; ++t)
    w[t] = uint32_t{block[4 * t]} << 24 | uint32_t{block[4 * t + 1]} << 16 | uint32_t{block[4 * t + 2]} << 8 |
           block[4 * t + 3];
  for (int t = kWords; t < kRounds; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < kRounds; ++t) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[t] + w[t];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> change{a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) state[i] += change[i];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  static const Constants constants;
  auto state = constants.initial;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t whole = bytes.size() / kBlock * kBlock;
  for (size_t at = 0; at < whole; at += kBlock) compress(state, data + at, constants.round);

  // What is left, a 1 bit, zeros, and the length in bits as the last eight bytes of a block.
  std::string tail(bytes.substr(whole));
  tail += '\x80';
  while (tail.size() % kBlock != kBlock - 8) tail += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) tail += static_cast<char>(uint64_t{bytes.size()} * 8 >> shift);
  for (size_t at = 0; at < tail.size(); at += kBlock)
    compress(state, reinterpret_cast<const unsigned char*>(tail.data()) + at, constants.round);

  std::string digits;
  for (uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 15];
  return digits;
}

}  // namespace lethe
