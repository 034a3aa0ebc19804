// A kernel that a build has as PTX of compute capability 8.0 alone, which waits for no kernel before it.
#include "tests/cuda/old_code.hpp"

namespace lethe::testing {
namespace {

__global__ void of_80(int* to) { *to = 1; }

}  // namespace

const void* kernel_of_80() { return reinterpret_cast<const void*>(of_80); }

}  // namespace lethe::testing
