#pragma once
// The problems that the CUDA kernels cover: host code that needs neither CUDA nor a device, so every build can answer.

#include <string>

#include "reference/problem.hpp"

namespace lethe {

/// The Hopper family's name: in the table of families, and among the implementations.
inline constexpr const char* kHopperKernels = "sm_90a kernels";

/// Why the kernels can't run the problem on a device of this compute capability (90 = 9.0), or "" where they can.
std::string unsupported(const Shape& shape, Dtype dtype, int capability);

}  // namespace lethe
