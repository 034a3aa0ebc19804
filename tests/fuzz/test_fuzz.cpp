// Every kind of file with damage of every kind: LETHE_FUZZ_INPUTS inputs a kind, 300 by default.
//
// An input that takes ten seconds of processor time ends the process; so does memory beyond what a small file may take, under ASan. What was read
// then stays in the folder that was printed last.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <iostream>

#include "experiments/data/sha256.hpp"
#include "tests/experiments/tiny.hpp"
#include "tests/fuzz/kinds.hpp"
#include "tests/fuzz/mutations.hpp"

extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=1024"; }

namespace lethe {
namespace {

constexpr time_t kLongest = 10;           // seconds of processor time an input
constexpr int64_t kMostMemory = 2 << 20;  // KiB of the whole process

void limit_time(time_t seconds) {
  const itimerval limit{{0, 0}, {seconds, 0}};
  setitimer(ITIMER_PROF, &limit, nullptr);  // SIGPROF ends the process
}

class Fuzz : public testing::TestWithParam<Kind> {};

TEST_P(Fuzz, ReadsDamageAsTheWholeFileOrRefusesIt) {
  const Kind& kind = GetParam();
  const TemporaryFolder folder;
  std::cout << kind.name << ": inputs in " << folder.path() << std::endl;
  Place place(kind, folder.path());
  ASSERT_EQ(place.fault_of(place.whole(), false), "");
  ASSERT_FALSE(place.was_refused()) << "the whole file";
  const int64_t inputs = number_from("LETHE_FUZZ_INPUTS", 300);
  int64_t refused = 0;
  for (int64_t input = 0; input < inputs; ++input) {
    std::mt19937 random(static_cast<unsigned>(input));
    const std::string bytes = damaged(place.whole(), random);
    limit_time(kLongest);
    const std::string fault = place.fault_of(bytes, input % 2 == 1);
    limit_time(0);
    refused += place.was_refused();
    EXPECT_EQ(fault, "") << kind.name << ", input " << input;
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(used.ru_maxrss, kMostMemory) << "KiB";
#endif
  EXPECT_GT(3 * refused, inputs) << "most damage matters";
  EXPECT_EQ(place.fault_of(place.whole(), false), "");
  EXPECT_FALSE(place.was_refused());
  std::cout << kind.name << ": " << inputs << " inputs, " << refused << " refused, " << inputs - refused << " read, "
            << used.ru_maxrss / 1024 << " MiB\n";
}

INSTANTIATE_TEST_SUITE_P(Files, Fuzz, testing::ValuesIn(kinds()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lethe
