#pragma once
// What the CUDA kernels cover: host code that needs neither CUDA nor a device, so that everybody can be told.

#include <string>

#include "reference/problem.hpp"

namespace lethe {

/// Why the kernels can't run the problem on a device of this compute capability (90 = 9.0), or "" where they can.
std::string unsupported(const Shape& shape, Dtype dtype, int capability);

/// What runs the operator on such a device, in words: so that nobody takes one implementation's speed for another's.
///
/// reads    reason  of unsupported()
/// returns  "sm_90a kernels", or "portable, not the sm_90a kernels: " and the reason
std::string implementation_on_cuda(const std::string& reason);

}  // namespace lethe
