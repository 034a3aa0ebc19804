#pragma once
// Forgetting Attention of sequences whose tokens lie on several ranks.

#include <torch/types.h>

#include <optional>

#include "experiments/training/world.hpp"

namespace lethe {

/// The tokens of one rank: of 2·size chunks of equal length, chunk `rank` and chunk 2·size − 1 − rank, one after the other. All ranks then have the
/// same number of causal pairs.
///
/// reads    whole [B,T,…], T a multiple of 2·size
/// returns  [B,T/size,…]
torch::Tensor own_chunks(const World& world, const torch::Tensor& whole);

/// own_chunks of forgetting_attention of the whole sequences (optimized/torch/forgetting_attention.hpp), from every rank's chunks. Keys, values and
/// gates of all ranks are gathered, and the operator is called for each chunk's queries with the keys up to its end; the backward sums the ranks'
/// gradients of the keys, values and gates. No gate needs an offset: the operator forms its prefix sums from log f.
///
/// reads    query, key, value, log_forget as the operator does, own_chunks of each, of equal length; the world must outlive the backward pass
/// returns  [B,T/size,Hq,Dv]; differentiable once
/// throws   as the operator; LostRank
/// cost     1/size of the operator; memory for the keys, values and gates of the whole sequences; 2·(1 − 1/size) of their bytes sent
/// numerics those of the operator; a gradient of a key, value or gate is the sum of the ranks' parts in its dtype. Pruning reads its bounds of each
/// call:
///          what it discards is bounded as there
torch::Tensor context_parallel_attention(World& world, const torch::Tensor& query, const torch::Tensor& key,
                                         const torch::Tensor& value, const torch::Tensor& log_forget,
                                         std::optional<double> scale = std::nullopt,
                                         std::optional<double> log_pruning_tolerance = std::nullopt);

}  // namespace lethe
