#include "tests/fuzz/mutations.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

namespace lethe {
namespace {

size_t below(size_t limit, std::mt19937& random) { return limit == 0 ? 0 : random() % limit; }

// Half of the places are among the first bytes, where headers are.
size_t place_in(const std::string& bytes, std::mt19937& random) {
  return below(random() % 2 == 0 ? std::min<size_t>(bytes.size(), 256) : bytes.size(), random);
}

void flip(std::string& bytes, std::mt19937& random) {
  if (bytes.empty()) return;
  char& byte = bytes[place_in(bytes, random)];
  byte = static_cast<char>(byte ^ 1 << random() % 8);
}

void cut(std::string& bytes, std::mt19937& random) { bytes.resize(place_in(bytes, random)); }

void remove(std::string& bytes, std::mt19937& random) {
  if (!bytes.empty()) bytes.erase(place_in(bytes, random), 1 + random() % 64);
}

// A part of the file over or between other parts of it.
void splice(std::string& bytes, std::mt19937& random) {
  const size_t from = place_in(bytes, random), to = place_in(bytes, random), length = 1 + random() % 200;
  const std::string part = bytes.substr(from, length);
  bytes.replace(to, random() % 2 == 0 ? part.size() : 0, part);
}

// A binary number of 1, 2, 4 or 8 bytes.
void set_length(std::string& bytes, std::mt19937& random) {
  const size_t width = size_t{1} << random() % 4, at = place_in(bytes, random) / width * width;
  if (at + width > bytes.size()) return;
  const std::array<uint64_t, 11> extremes{0,
                                          1,
                                          UINT64_MAX,
                                          INT64_MAX,
                                          uint64_t{1} << 63,
                                          INT32_MAX,
                                          uint64_t{1} << 31,
                                          uint64_t{1} << 32,
                                          0x7fff,
                                          bytes.size(),
                                          random()};
  const uint64_t number = extremes[random() % extremes.size()] + random() % 3 - 1;
  std::memcpy(bytes.data() + at, &number, width);
}

bool is_of_a_number(char c) { return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.'; }

// A decimal number, or a value that stands for one.
void set_number(std::string& bytes, std::mt19937& random) {
  std::vector<size_t> begins;
  for (size_t at = 0; at < bytes.size() && at < 100'000; ++at)
    if (is_of_a_number(bytes[at]) && (at == 0 || !is_of_a_number(bytes[at - 1]))) begins.push_back(at);
  if (begins.empty()) return;
  const size_t begin = begins[random() % begins.size()];
  size_t end = begin;
  while (end < bytes.size() && is_of_a_number(bytes[end])) ++end;
  constexpr std::array numbers{"0",
                               "-1",
                               "1",
                               "2147483648",
                               "-2147483649",
                               "9223372036854775807",
                               "-9223372036854775808",
                               "18446744073709551615",
                               "18446744073709551616",
                               "1e308",
                               "-1e308",
                               "1e999",
                               "5e-324",
                               "nan",
                               "inf",
                               "0.5",
                               "1000000",
                               "null",
                               "true",
                               "\"x\"",
                               "[]",
                               "{}",
                               "",
                               "1048576",
                               "9007199254740992"};
  bytes.replace(begin, end - begin, numbers[random() % numbers.size()]);
}

void nest(std::string& bytes, std::mt19937& random) {
  constexpr std::array openings{"[", "{\"a\":", "(", "a.", "[[", "\"", "\\", "{a="};
  constexpr std::array<size_t, 6> depths{2, 20, 63, 65, 2000, 100'000};
  const std::string opening = openings[random() % openings.size()];
  std::string text;
  for (size_t depth = depths[random() % depths.size()]; depth > 0; --depth) text += opening;
  bytes.insert(place_in(bytes, random), text);
}

void insert_bytes(std::string& bytes, std::mt19937& random) {
  constexpr std::array parts{"\xff\xfe", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\n", "\r", ",", "\"",
                             "=",        "#",        "{}",           "\x1b[31m"};
  std::string part = parts[random() % parts.size()];
  if (random() % 8 == 0) part.assign(1 + random() % 3, '\0');
  bytes.insert(place_in(bytes, random), part);
}

}  // namespace

std::string damaged(std::string bytes, std::mt19937& random) {
  constexpr std::array changes{flip, flip, cut, remove, splice, set_length, set_number, set_number, nest, insert_bytes};
  for (size_t count = 1 + random() % 4; count > 0; --count) changes[random() % changes.size()](bytes, random);
  return bytes;
}

}  // namespace lethe
