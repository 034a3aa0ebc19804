#pragma once
// Row and column sums of dS, which the backward's main kernel hands to its last one, and where they lie.

#include <cstdint>
#include <vector>

#include "optimized/cuda/backward.hpp"

namespace lethe::testing {

struct GateSums {
  std::vector<float> of_rows;     ///< [B·Hq, Tq]
  std::vector<float> of_columns;  ///< [B·Hq, Tk]
};

/// Tokens of a head in the workspace.
inline int64_t padded(int64_t length) { return (length + kGateBlock - 1) / kGateBlock * kGateBlock; }

/// Floats of BackwardWorkspace::grad_query that come before the first slice of a query's 64, which alone has their row sums. `row` = b·Hq + h.
inline int64_t slice_of(const Shape& s, int64_t row, int64_t query) {
  return (row * padded(s.query_length) + query) / 64 * (s.key_dim / 64) * kSliceFloats;
}

/// Index of a query's row sum in BackwardWorkspace::grad_query; those of its 64 are neighbours.
inline int64_t row_sum_at(const Shape& s, int64_t row, int64_t query) {
  return slice_of(s, row, query) + 64 * 64 + query % 64;
}

/// Index of a key's sum in BackwardWorkspace::column_sums; a head's are neighbours.
inline int64_t column_sum_at(const Shape& s, int64_t row, int64_t key) { return row * padded(s.key_length) + key; }

}  // namespace lethe::testing
