// Which launches may overlap the kernel before: those of code that waits for it.

#include "optimized/cuda/launch.cuh"
#include "tests/cuda/device.hpp"
#include "tests/cuda/old_code.hpp"

namespace lethe {
namespace {

__global__ void of_90(int* to) {
  wait_for_previous_kernel();
  *to = 1;
}

TEST(Launch, OverlapsWhereTheCodeWaitsWhateverTheDevice) {
  LETHE_NEEDS_GPU();
  for (int call = 0; call < 2; ++call) {  // the second from memory
    EXPECT_TRUE(overlaps_previous_kernel(reinterpret_cast<const void*>(of_90)));
    EXPECT_FALSE(overlaps_previous_kernel(testing::kernel_of_80()));
  }
}

}  // namespace
}  // namespace lethe
