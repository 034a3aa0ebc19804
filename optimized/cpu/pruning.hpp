#pragma once
// The blocks of keys that no query needs, because its gates leave them no weight.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "optimized/cpu/gates.hpp"
#include "optimized/cpu/problem.hpp"

namespace lethe::cpu {

/// δ = −2U − log Tk + log ε for every (batch, query head); −∞ without a tolerance.
///
/// source   Adaptive Computation Pruning, Eq. 3 and Appendix A
/// reads    query, key [B,T,H,D] in float32 or float64, as with_readable_rows returns them; logit_bound as forgetting_attention;
///          U from the norms where it is absent. A row with an entry that is not finite does not count: every row that sees it is lost already
/// throws   c10::Error where a bound is negative or NaN
/// cost     one pass over query and key for U, if it is asked for
std::vector<double> pruning_thresholds(const Sizes& sizes, const at::Tensor& query, const at::Tensor& key, double scale,
                                       std::optional<double> log_pruning_tolerance,
                                       const std::optional<at::Tensor>& logit_bound);

/// The first position that the first query of every (batch, query head) visits, and so any: a multiple of kKeyBlock.
///
/// cost     O(visited): the gates are read from the first query's position back
std::vector<int64_t> first_visited(const Sizes& sizes, const at::Tensor& log_forget,
                                   const std::vector<double>& thresholds);

/// The number of blocks of kKeyBlock keys that each tile of kQueryRows queries skips, [B, Hq, tiles] int32.
///
///   skip block n where every D_ij < δ or = −∞, or every j is outside the window; D is largest for the tile's first row and the block's last key
///
/// cost     O(tiles · log visited blocks) a head by binary search: D falls with the distance
at::Tensor pruning_boundary(const Sizes& sizes, const GatePrefix& prefix, const std::vector<double>& thresholds);

}  // namespace lethe::cpu
