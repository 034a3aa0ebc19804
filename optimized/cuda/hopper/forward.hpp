#pragma once
// The forward's main kernel. Internal to optimized/cuda.

#include "optimized/cuda/hopper/plan.hpp"

namespace lethe {

/// Queries of one tile of the forward kernel of an instance. A tile visits the key blocks of the query block that its first query is in.
constexpr int64_t forward_tile_rows(int64_t instance_dim) { return instance_dim == 64 ? 192 : 128; }

/// Values, log normalizer and visited pairs of a forward whose plan has been launched on the same stream; throws std::runtime_error for a
/// CUDA error.
void launch_forward_tiles(const ForwardArguments& arguments, const Plan& plan);

}  // namespace lethe
