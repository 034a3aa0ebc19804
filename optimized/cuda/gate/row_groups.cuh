#pragma once
// The rows of dS that share a float sum in the backward.
//
// A row of dS sums to 0 in exact arithmetic. Its rounding error is subtracted from the row's keys in the proportions that the gate alone would give
// them (gradient.cuh). While the gate hardly decays, successive rows subtract theirs from nearly the same keys: the row of an error then matters
// little, and one sum of 64 rows will do. A tile's row sums cost more than its column sums: their elements are in eight lanes of eight warps. Where
// the gate decays in a block of 128 tokens to e⁻¹ or less, or cuts, each row keeps a sum of its own. So do the rows of the next block, whose first
// rows see few keys other than those between them.
//
// All key tiles must group a query tile alike: only the sum over all of a row's elements is near zero.

#include "optimized/cuda/gate/plan.hpp"

namespace lethe {

/// Rows that share a sum where any do. A query tile of the backward's main kernel has two such groups at D = 64, one at 128.
inline constexpr int kGroupRows = 64;

/// Whether the gate decays much in a block whose log f, cuts apart, have this sum. True for NaN.
__host__ __device__ inline bool gate_decays(double block_sum, bool has_cut) { return has_cut || !(block_sum > -1); }

/// Whether the rows of the query tile at `position` keep separate sums: those of any block with queries of the tile. Where tiles don't begin with
/// blocks, a tile that ends with a block counts the next as well.
/// shapes   separate: a head's GatePrefix::separate_rows, [N+1]
__device__ inline bool rows_are_separate(const uint8_t* separate, int position, int tile_queries, int query_offset) {
  constexpr int kBlock = kGateBlock;
  return separate[position / kBlock] || (query_offset % kBlock != 0 && separate[(position + tile_queries) / kBlock]);
}

}  // namespace lethe
