#pragma once
// Whether the kernels know of a gate. The operators' always do. Built with LETHE_WITHOUT_GATE they compute softmax attention, log f = 0,
// with nothing of the gate left: what it costs is measured against that build (optimized/benchmarks).

namespace lethe {

#ifdef LETHE_WITHOUT_GATE
inline constexpr bool kGate = false;
#else
inline constexpr bool kGate = true;
#endif

}  // namespace lethe
