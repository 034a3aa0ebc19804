// The choice among the compilations of tile_kernels.cpp on this processor.
#include "optimized/cpu/instruction_set.hpp"
#include "optimized/cpu/tile_kernels.hpp"

namespace lethe::cpu {

#define LETHE_DECLARE(instruction_set)             \
  namespace instruction_set {                      \
  extern const TileKernels<float> float_kernels;   \
  extern const TileKernels<double> double_kernels; \
  }
LETHE_DECLARE(baseline)
#ifdef LETHE_X86_KERNELS
LETHE_DECLARE(avx2)
LETHE_DECLARE(avx512)
#else
namespace avx2 = baseline;
namespace avx512 = baseline;
#endif
#undef LETHE_DECLARE

template <>
const TileKernels<float>& tile_kernels<float>() {
  static const TileKernels<float>& chosen = choose(baseline::float_kernels, avx2::float_kernels, avx512::float_kernels);
  return chosen;
}

template <>
const TileKernels<double>& tile_kernels<double>() {
  static const TileKernels<double>& chosen =
      choose(baseline::double_kernels, avx2::double_kernels, avx512::double_kernels);
  return chosen;
}

}  // namespace lethe::cpu
