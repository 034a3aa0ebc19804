#pragma once
// The gate's constants that all implementations share.

#include <cstdint>

namespace lethe {

/// Gates with log f below this stay out of prefix sums: next to one of them a difference of float64 sums would have no digits left for its
/// neighbours. The CPU adds such gates one by one; the CUDA kernels take them for cuts.
inline constexpr double kStrongGate = -1e4;

/// The bound |scale|·max ‖q‖·max ‖k‖ of the logits is rounded up by this factor: by more than the rounding of norms and products.
inline constexpr double kNormSlack = 1 + 1e-5;

/// Tokens in a block of the CUDA kernels' prefix sums, and both sides of the blocks that pruning skips on a GPU.
inline constexpr int64_t kGateBlock = 128;

/// Blocks of a sequence; tokens of so many whole blocks.
constexpr int64_t gate_blocks(int64_t length) { return (length + kGateBlock - 1) / kGateBlock; }
constexpr int64_t whole_blocks(int64_t length) { return gate_blocks(length) * kGateBlock; }

}  // namespace lethe
