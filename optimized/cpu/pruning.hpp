#pragma once
// The blocks of keys that no query needs, because its gates leave them no weight.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "optimized/cpu/gates.hpp"
#include "optimized/cpu/problem.hpp"

namespace lethe::cpu {

/// What decides for each (batch, query head): D_ij < log_share − A_n by mass, D_ij < log_share − log T by weight, T of the sequence between cuts.
struct Pruning {
  std::vector<double> log_share;  ///< −2U + log ε; −∞ without a tolerance
  bool by_mass;
};

/// U from logit_bound as forgetting_attention has it, from the norms where it is absent.
///
/// source   Adaptive Computation Pruning, Eq. 3 and Appendix A; by mass: reference/computation_pruning.hpp
/// reads    query, key [B,T,H,D] in float32 or float64, as with_readable_rows returns them. A row with an entry that is not finite does not count:
///          every row that sees it is lost already
/// throws   c10::Error where a bound is negative or NaN
/// cost     one pass over query and key for U, if it is asked for
Pruning pruning_of(const Sizes& sizes, const at::Tensor& query, const at::Tensor& key, const AttentionInputs& in);

/// A position before which the first query of every (batch, query head) visits nothing, and so none: a multiple of kKeyBlock. By weight with T = Tk,
/// since no gate before it has been read.
///
/// cost     O(visited): the gates are read from the first query's position back
std::vector<int64_t> first_visited(const Sizes& sizes, const at::Tensor& log_forget, const Pruning& pruning);

/// The number of blocks of kKeyBlock keys that each tile of kQueryRows queries skips, [B, Hq, tiles] int32.
///
///   skip block n where D_ij of the tile's first row and the block's last key is below the bound, or −∞, or every j is outside the window
///
/// By mass, the keys before the prefix's begin count as if they had not decayed there: they are fewer than the T of the bound by weight.
///
/// cost     O(tiles · log visited blocks) a head by binary search; by mass also an exponential a visited gate
at::Tensor pruning_boundary(const Sizes& sizes, const at::Tensor& log_forget, const GatePrefix& prefix,
                            const Pruning& pruning);

}  // namespace lethe::cpu
