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

/// In namespace lethe::cpu: `const Table& name()`, the choice among the objects `name` that a kernel file defines in the namespace of each
/// compilation.
#ifdef LETHE_X86_KERNELS
#define LETHE_CHOICE(Table, name) \
  namespace baseline {            \
  extern const Table name;        \
  }                               \
  namespace avx2 {                \
  extern const Table name;        \
  }                               \
  namespace avx512 {              \
  extern const Table name;        \
  }                               \
  LETHE_CHOICE_AMONG(Table, name, avx2::name, avx512::name)
#else
#define LETHE_CHOICE(Table, name) \
  namespace baseline {            \
  extern const Table name;        \
  }                               \
  LETHE_CHOICE_AMONG(Table, name, baseline::name, baseline::name)
#endif
#define LETHE_CHOICE_AMONG(Table, name, avx2_table, avx512_table)                                \
  const Table& name() {                                                                          \
    static const Table& chosen = ::lethe::cpu::choose(baseline::name, avx2_table, avx512_table); \
    return chosen;                                                                               \
  }

}  // namespace lethe::cpu
