#pragma once
// Whether the kernels have a gate. The operators' always do. Built with LETHE_WITHOUT_GATE they compute softmax attention, log f = 0, without any
// code of the gate: the gate's cost is measured against that build (optimized/benchmarks).

namespace lethe {

#ifdef LETHE_WITHOUT_GATE
inline constexpr bool kGate = false;
#else
inline constexpr bool kGate = true;
#endif

}  // namespace lethe
