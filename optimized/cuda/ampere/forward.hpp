#pragma once
// The forward's main kernel. Internal to optimized/cuda.

#include "optimized/cuda/ampere/plan.hpp"

namespace lethe::ampere {

/// Values, log normalizer and visited pairs of a forward whose plan has been launched on the same stream; throws std::runtime_error for a CUDA error.
void launch_forward_tiles(const ForwardArguments& arguments, const Plan& plan);

}  // namespace lethe::ampere
