#pragma once
// Row and column sums of dS, which the backward's main kernel stores for its last one, and their places.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "optimized/cuda/hopper/backward.hpp"
#include "optimized/cuda/hopper/dimensions.hpp"
#include "reference/problem.hpp"

namespace lethe::testing {

struct GateSums {
  std::vector<float> of_rows;     ///< [B·Hq, Tq]
  std::vector<float> of_columns;  ///< [B·Hq, Tk]
};

/// Tokens of a head in the workspace.
inline int64_t padded(int64_t length) { return (length + kGateBlock - 1) / kGateBlock * kGateBlock; }

/// Floats of BackwardWorkspace::grad_query before the first slice of a query's 64, which alone has their row sums. `row` = b·Hq + h.
inline int64_t slice_of(const Shape& s, int64_t row, int64_t query) {
  return (row * padded(s.query_length) + query) / 64 * (hopper::instance_dim(s) / 64) * kSliceFloats;
}

/// Index of a query's row sum in BackwardWorkspace::grad_query; those of its 64 are neighbours.
inline int64_t row_sum_at(const Shape& s, int64_t row, int64_t query) {
  return slice_of(s, row, query) + 64 * 64 + query % 64;
}

/// Index of a key's sum in BackwardWorkspace::column_sums; a head's are neighbours.
inline int64_t column_sum_at(const Shape& s, int64_t row, int64_t key) { return row * padded(s.key_length) + key; }

/// Rows that share a float sum of dS where any do.
inline constexpr int64_t kRowsOfGroup = 64;

inline int64_t rows_of_tile(const Shape& s) {
  return hopper::instance_dim(s) == 64 ? kTileQueries<64> : kTileQueries<128>;
}

/// Whether the sums are of floats: asked for, or because an instance has no others.
inline bool in_float(const Shape& s, bool float_sums) {
  return float_sums || !hopper::has_16_bit_sums(hopper::instance_dim(s));
}

/// Whether each row of a query's tile has a float sum of its own: not if the gate neither cuts nor decays to e⁻¹ in a block of 128 positions with
/// queries of the tile, nor in the one before; where tiles don't begin with blocks, nor in the one after the tile.
inline bool rows_apart(const Problem& problem, int64_t row, int64_t query) {
  const Shape& s = problem.shape;
  const int64_t offset = s.key_length - s.query_length, first = offset + query / rows_of_tile(s) * rows_of_tile(s),
                last = offset % kGateBlock == 0 ? first : first + rows_of_tile(s);
  for (int64_t block = std::max(first / kGateBlock - 1, int64_t{0}); block <= last / kGateBlock; ++block) {
    double sum = 0;
    for (int64_t token = block * kGateBlock; token < std::min((block + 1) * kGateBlock, s.key_length); ++token)
      sum += problem.log_forget[(row / s.query_heads * s.key_length + token) * s.query_heads + row % s.query_heads];
    if (!(sum > -1)) return true;  // a cut is −inf
  }
  return false;
}

/// Indices of the parts of the float sum of a query's group: one for each of eight warps, of which each half has one of the tile's two groups.
inline std::vector<int64_t> parts_at(const Shape& s, int64_t row, int64_t query) {
  const int64_t tile = rows_of_tile(s), lanes = 32 * kRowsOfGroup / tile;
  const int64_t slice = slice_of(s, row, query / tile * tile) + 64 * 64 + query % tile / kRowsOfGroup * lanes;
  std::vector<int64_t> parts;
  for (int64_t warp = 0; warp < 8; ++warp)
    for (int64_t lane = 0; lane < lanes; ++lane)
      parts.push_back(slice + warp / 4 * kSliceFloats + warp % 4 * 32 + lane);
  return parts;
}

}  // namespace lethe::testing
