// A kind of file, $LETHE_FUZZ_KIND, under libFuzzer. An input's first byte says whether its hash is made to fit; from an empty corpus it begins
// with the whole file.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "experiments/listed.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/fuzz/kinds.hpp"
#include "tests/fuzz/mutations.hpp"

namespace {

const lethe::Kind& chosen_kind() {
  const char* name = std::getenv("LETHE_FUZZ_KIND");
  for (const lethe::Kind& one : lethe::kinds())
    if (name != nullptr && one.name == name) return one;
  const std::string known = lethe::listed(lethe::kinds(), &lethe::Kind::name);
  std::fprintf(stderr, "LETHE_FUZZ_KIND: expected one of %s, found %s\n", known.c_str(), name ? name : "none");
  std::exit(2);
}

lethe::Place& place() {
  static const lethe::TemporaryFolder folder;
  static lethe::Place place(chosen_kind(), folder.path());
  return place;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  place();  // a wrong kind ends here
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string fault = place().fault_of(bytes, data[0] % 2 == 1);
  if (fault.empty()) return 0;
  std::fprintf(stderr, "%s: %s\n", chosen_kind().name.c_str(), fault.c_str());
  std::abort();
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  std::mt19937 random(seed);
  if (size > 2 && random() % 2 == 0) return LLVMFuzzerMutate(data, size, most);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const std::string changed = lethe::damaged(size > 2 ? bytes.substr(1) : place().whole(), random);
  const size_t kept = std::min(changed.size(), most - 1);
  data[0] = static_cast<uint8_t>(random());
  std::memcpy(data + 1, changed.data(), kept);
  return kept + 1;
}
