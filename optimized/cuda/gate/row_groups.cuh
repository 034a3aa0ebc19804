#pragma once
// Which rows of dS share a float sum, in the backward.
//
// A row of dS sums to 0 but for rounding, and what it sums to is taken back from the row's keys, where the gate alone would put them
// (gate/gradient.cu). Rows that follow one another while the gate hardly decays take it back from nearly the same keys: so it matters little
// which of them an error was of, and one sum of 64 rows will do. It is a tile's row sums that take long to make, not its columns': their elements
// lie in eight lanes of eight warps. Where the gate decays in a block of 128 tokens to e⁻¹ or less, or cuts, each row has a sum of its own, and in
// the block behind it as well, whose first rows see few keys but those between them.
//
// All key tiles must make the same of a query tile: what is left of sums of all of a row's elements is small, and of a part of them is not.

#include "optimized/cuda/gate/plan.hpp"

namespace lethe {

/// Rows that share a sum where any do. A query tile of the backward's main kernel has two such groups at D = 64, one at 128.
inline constexpr int kGroupRows = 64;

/// Whether the gate decays much in a block of this sum of log f, in which cuts are not. NaN: it does.
__host__ __device__ inline bool gate_decays(double block_sum, bool has_cut) { return has_cut || !(block_sum > -1); }

/// Whether the rows of the query tile at `position` keep separate sums: those of any block that it has queries of. Where tiles don't begin
/// with blocks, a tile that ends with one counts the next as well.
/// shapes   separate: a head's GatePrefix::separate_rows, [N+1]
__device__ inline bool rows_are_separate(const uint8_t* separate, int position, int tile_queries, int query_offset) {
  constexpr int kBlock = kGateBlock;
  return separate[position / kBlock] || (query_offset % kBlock != 0 && separate[(position + tile_queries) / kBlock]);
}

}  // namespace lethe
