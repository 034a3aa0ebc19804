// Which compilation of tile_kernels.cpp this processor runs.
#include "optimized/torch/cpu/tile_kernels.hpp"

namespace lethe::cpu {

#define LETHE_DECLARE(instruction_set)               \
  namespace instruction_set {                        \
  extern const TileKernels<float> float_kernels;     \
  extern const TileKernels<double> double_kernels;   \
  }
LETHE_DECLARE(baseline)
#ifdef LETHE_X86_KERNELS
LETHE_DECLARE(avx2)
LETHE_DECLARE(avx512)
#endif
#undef LETHE_DECLARE

namespace {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

InstructionSet instruction_set() {
#ifdef LETHE_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw")) {
    return InstructionSet::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

template <typename Table>
const Table& choose(const Table& baseline, [[maybe_unused]] const Table& avx2, [[maybe_unused]] const Table& avx512) {
  static const InstructionSet found = instruction_set();
  return found == InstructionSet::kAvx512 ? avx512 : found == InstructionSet::kAvx2 ? avx2 : baseline;
}

}  // namespace

#ifdef LETHE_X86_KERNELS
template <>
const TileKernels<float>& tile_kernels<float>() {
  return choose(baseline::float_kernels, avx2::float_kernels, avx512::float_kernels);
}
template <>
const TileKernels<double>& tile_kernels<double>() {
  return choose(baseline::double_kernels, avx2::double_kernels, avx512::double_kernels);
}
#else
template <>
const TileKernels<float>& tile_kernels<float>() {
  return baseline::float_kernels;
}
template <>
const TileKernels<double>& tile_kernels<double>() {
  return baseline::double_kernels;
}
#endif

}  // namespace lethe::cpu
