#pragma once
// Cuts as the gate's plan tells them.

#include <climits>

#include "optimized/cuda/gate/plan.hpp"

namespace lethe {

static_assert(kGateBlock <= kNoCut);

/// The token of a cut at `place` in a block; before all tokens, or behind them, where there is none.
__host__ __device__ inline int last_cut_at(uint8_t place, int block) {
  return place == kNoCut ? -1 : block * static_cast<int>(kGateBlock) + place;
}
__host__ __device__ inline int first_cut_at(uint8_t place, int block) {
  return place == kNoCut ? INT_MAX : block * static_cast<int>(kGateBlock) + place;
}

}  // namespace lethe
