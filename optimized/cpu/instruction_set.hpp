#pragma once
// Which of the compilations of a kernel file runs here.

#include <ATen/Version.h>

#include <string>

namespace lethe::cpu {

/// The table of the instruction set that Torch's own kernels use: what the processor has, or less where the environment says
/// ATEN_CPU_CAPABILITY=avx2 or default. Where only the baseline was compiled, all three are that one.
template <typename Table>
const Table& choose(const Table& baseline, const Table& avx2, const Table& avx512) {
  const std::string capability = at::get_cpu_capability();
  return capability == "AVX512" ? avx512 : capability == "AVX2" ? avx2 : baseline;
}

}  // namespace lethe::cpu
