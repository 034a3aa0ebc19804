#pragma once
// The workspace of the gate's gradient (gradient.cuh).

#include "optimized/cuda/gate/plan.hpp"

namespace lethe {
namespace gate_gradient {

/// Tokens of one CTA where a head has several; eight blocks, a warp each.
inline constexpr int kPieceWarps = 8, kPieceTokens = kPieceWarps * int(kGateBlock);

/// Tokens whose sums of blocks are added before those of the next.
inline constexpr int kChunkTokens = 4096;
static_assert(kChunkTokens % kPieceTokens == 0);

/// Of a head of `length` keys.
constexpr int64_t pieces(int64_t length) { return (length + kPieceTokens - 1) / kPieceTokens; }

}  // namespace gate_gradient

/// Floats of GateGradientArguments::row_shares: a number of every token, and of every block three of eight bytes.
inline int64_t gate_gradient_floats(const Shape& shape) {
  const int64_t blocks = gate_gradient::pieces(shape.key_length) * gate_gradient::kPieceWarps;
  return shape.batch * shape.query_heads * (gate_blocks(shape.key_length) * kGateBlock + 6 * blocks);
}

}  // namespace lethe
