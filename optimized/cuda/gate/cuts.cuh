#pragma once
// The cuts of a gate's prefix.

#include <climits>

#include "optimized/cuda/gate/plan.hpp"
#include "optimized/cuda/gate/visibility.hpp"

namespace lethe {

static_assert(kGateBlock <= kNoCut);

/// The token of a cut at `place` in a block; without one, a token before all or after all.
__host__ __device__ inline int last_cut_at(uint8_t place, int block) {
  return place == kNoCut ? -1 : block * static_cast<int>(kGateBlock) + place;
}
__host__ __device__ inline int first_cut_at(uint8_t place, int block) {
  return place == kNoCut ? INT_MAX : block * static_cast<int>(kGateBlock) + place;
}

/// The cuts that queries of one (batch, query head) see, for Visibility.
struct QueryCuts {
  const uint8_t* before;        // [N·128]
  const int32_t* block_before;  // [N+1]

  __host__ __device__ int last_cut(int position) const {
    const int block = position / static_cast<int>(kGateBlock);
    return max(last_cut_at(before[position], block), block_before[block]);
  }
};

/// The cuts after the keys of one block.
struct KeyBlockCuts {
  int block;
  const uint8_t* after;  // [128]
  int32_t block_after;   // the first cut in later blocks

  __host__ __device__ int next_cut(int position) const {
    return min(first_cut_at(after[position - block * static_cast<int>(kGateBlock)], block), block_after);
  }
};

/// Which keys a head's queries see. row = b·Hq + h; key_blocks = N.
__host__ __device__ inline Visibility<QueryCuts> visibility_of_queries(const GatePrefix& prefix, int64_t row,
                                                                       int key_blocks) {
  return {{prefix.cut_before + row * key_blocks * kGateBlock, prefix.block_cut_before + row * (key_blocks + 1)},
          prefix.window};
}

/// Which of a head's queries see the keys of a block.
__host__ __device__ inline Visibility<KeyBlockCuts> visibility_of_keys(const GatePrefix& prefix, int64_t row,
                                                                       int key_blocks, int block) {
  return {{block, prefix.cut_after + (row * key_blocks + block) * kGateBlock,
           prefix.block_cut_after[row * (key_blocks + 1) + block + 1]},
          prefix.window};
}

}  // namespace lethe
