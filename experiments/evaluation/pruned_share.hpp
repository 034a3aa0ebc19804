#pragma once
// The effect of Adaptive Computation Pruning on the heads of a trained model.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "reference/head.hpp"

namespace lethe {

/// A copy of a model with the same weights and the settings of its attention as `change` leaves them.
LanguageModel with_attention(const LanguageModel& model, const std::function<void(AttentionConfig&)>& change);

/// The same with another pruning tolerance.
LanguageModel with_tolerance(const LanguageModel& model, std::optional<double> log_tolerance);

/// The attention inputs of every layer on sequence `sequence` of `length` tokens of a split, alone in its batch.
std::vector<AttentionTrace> traced(LanguageModel& model, const Dataset& dataset, int64_t length, int64_t sequence,
                                   const std::string& split = "valid");

/// One head of a trace, in double: an input of the reference.
Head traced_head(const AttentionTrace& layer, int64_t head);

/// δ of one head of a trace, computed from the operator's logit bound.
double traced_threshold(const AttentionTrace& layer, int64_t head, double log_tolerance);

/// Shares of the causal pairs that pruning skips in one head, a sequence each.
struct HeadShare {
  int64_t layer = 0, head = 0;
  std::vector<double> blocks;   ///< skipped by the operator, in its blocks
  std::vector<double> entries;  ///< pairs with D_ij < δ: skipped by blocks of a single pair, whatever the kernel

  std::string name() const { return "layer " + std::to_string(layer) + " head " + std::to_string(head); }
};

/// The shares of all heads of a model that prunes, layer by layer.
///
/// throws  std::invalid_argument for a model that doesn't prune
std::vector<HeadShare> head_shares(LanguageModel& model, const Dataset& dataset, int64_t length, int64_t sequences,
                                   const std::string& split = "valid",
                                   const std::function<void(double)>& progress = {});

/// Shares of the whole attention, a sequence each: the mean over heads of one kind, &HeadShare::blocks or &HeadShare::entries.
std::vector<double> over_heads(const std::vector<HeadShare>& shares, std::vector<double> HeadShare::*kind);

}  // namespace lethe
