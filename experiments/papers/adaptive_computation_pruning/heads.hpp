#pragma once
// What Adaptive Computation Pruning does to the heads of a trained model.

#include <optional>
#include <string>
#include <vector>

#include "experiments/models/mixers/attention.hpp"
#include "experiments/papers/runs.hpp"
#include "reference/head.hpp"

namespace lethe {

/// FoX (Pro) at a context length, trained with log ε = `log_tolerance`, or without pruning.
Run pruning_run(const nlohmann::json& settings, int64_t vocabulary, int64_t context_length,
                std::optional<double> log_tolerance);

/// The run that the claims on single heads look at: settings["context_length"] and settings["log_tolerance"].
Run studied_run(const nlohmann::json& settings, int64_t vocabulary);

/// A copy of a model with another tolerance: the same weights, computed with more or less pruning.
LanguageModel with_tolerance(const LanguageModel& model, std::optional<double> log_tolerance);

/// What every layer's attention saw of validation sequence `sequence` of `length` tokens, alone in its batch.
std::vector<AttentionTrace> traced(LanguageModel& model, const Dataset& dataset, int64_t length, int64_t sequence);

/// One head of a trace, in double, as the reference reads it.
Head traced_head(const AttentionTrace& layer, int64_t head);

/// δ of one head of a trace: from the logit bound that the operator was given.
double traced_threshold(const AttentionTrace& layer, int64_t head, double log_tolerance);

/// Shares of the causal pairs that pruning skips in one head, a sequence each.
struct HeadShare {
  int64_t layer = 0, head = 0;
  std::vector<double> blocks;  ///< what the operator skipped, in its blocks
  std::vector<double>
      entries;  ///< the pairs with D_ij < δ: what blocks of a single pair would skip, whatever the kernel

  std::string name() const { return "layer " + std::to_string(layer) + " head " + std::to_string(head); }
};

/// The shares of all heads of a model that prunes, layer by layer.
std::vector<HeadShare> head_shares(LanguageModel& model, const Dataset& dataset, int64_t length, int64_t sequences);

/// Shares of the whole attention, a sequence each: the mean over heads of one kind, &HeadShare::blocks or &HeadShare::entries.
std::vector<double> over_heads(const std::vector<HeadShare>& shares, std::vector<double> HeadShare::*kind);

/// 95 % half width of the mean of independent values: 1.96 standard errors; infinite for fewer than two.
double band_of_mean(const std::vector<double>& values);

}  // namespace lethe
