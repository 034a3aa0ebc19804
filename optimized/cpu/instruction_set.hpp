#pragma once
// The choice among the compilations of a kernel file.

#include <ATen/Version.h>

#include <string>

namespace lethe::cpu {

/// The table of the instruction set that Torch's own kernels use: the processor's, or a lower one where the environment sets ATEN_CPU_CAPABILITY=avx2
/// or default. Where only the baseline was compiled, all three are the baseline.
template <typename Table>
const Table& choose(const Table& baseline, const Table& avx2, const Table& avx512) {
  const std::string capability = at::get_cpu_capability();
  return capability == "AVX512" ? avx512 : capability == "AVX2" ? avx2 : baseline;
}

}  // namespace lethe::cpu
