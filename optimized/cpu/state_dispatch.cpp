// The choice among the compilations of state_kernels.cpp on this processor.
#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/state_kernels.hpp"

namespace lethe::cpu {

namespace baseline {
extern const StateKernels state_kernel_table;
}
#ifdef LETHE_X86_KERNELS
namespace avx2 {
extern const StateKernels state_kernel_table;
}
namespace avx512 {
extern const StateKernels state_kernel_table;
}
#else
namespace avx2 = baseline;
namespace avx512 = baseline;
#endif

const StateKernels& state_kernels() {
  static const StateKernels& chosen =
      choose(baseline::state_kernel_table, avx2::state_kernel_table, avx512::state_kernel_table);
  return chosen;
}

}  // namespace lethe::cpu
