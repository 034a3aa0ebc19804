#pragma once
// Which of the compilations of a kernel file this processor runs.

namespace lethe::cpu {

/// A table of kernels of each instruction set; where only the baseline was compiled, all three are that one.
template <typename Table>
const Table& choose(const Table& baseline, [[maybe_unused]] const Table& avx2, [[maybe_unused]] const Table& avx512) {
#ifdef LETHE_X86_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw")) {
    return avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2;
#endif
  return baseline;
}

}  // namespace lethe::cpu
