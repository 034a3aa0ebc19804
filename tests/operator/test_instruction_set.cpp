// The kernels are compiled for several instruction sets; ctest runs these suites once with each.

#include <ATen/Version.h>
#include <gtest/gtest.h>

#include "optimized/cpu/state_kernels.hpp"

namespace lethe::cpu {
namespace {

TEST(InstructionSet, IsTheOneThatTorchUses) {
  const std::string capability = at::get_cpu_capability();
  EXPECT_EQ(state_kernels().lanes, capability == "AVX512" ? 8 : capability == "AVX2" ? 4 : 2);
}

}  // namespace
}  // namespace lethe::cpu
