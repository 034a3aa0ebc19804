// The choice among the compilations of tile_kernels.cpp on this processor.
#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/tile_kernels.hpp"

namespace lethe::cpu {

LETHE_CHOICE(TileKernels<float>, float_kernels)
LETHE_CHOICE(TileKernels<double>, double_kernels)

template <>
const TileKernels<float>& tile_kernels<float>() {
  return float_kernels();
}

template <>
const TileKernels<double>& tile_kernels<double>() {
  return double_kernels();
}

}  // namespace lethe::cpu
