// The choice among the compilations of state_kernels.cpp on this processor.
#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/state_kernels.hpp"

namespace lethe::cpu {

LETHE_CHOICE(StateKernels, state_kernels)

}  // namespace lethe::cpu
