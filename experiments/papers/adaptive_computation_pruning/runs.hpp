#pragma once
// The models of the claims on pruning.

#include <optional>

#include "experiments/claims/runs.hpp"

namespace lethe {

/// FoX (Pro) at a context length, trained with log ε = `log_tolerance`, or without pruning.
Run pruning_run(const nlohmann::json& settings, int64_t vocabulary, int64_t context_length,
                std::optional<double> log_tolerance);

/// The run of the claims on single heads: settings["context_length"] and settings["log_tolerance"].
Run studied_run(const nlohmann::json& settings, int64_t vocabulary);

/// The effect of pruning on a whole model, see Study::measured.
struct Pruned {
  std::vector<double> blocks, entries;  ///< shares of the causal pairs, as of HeadShare, the mean over heads of each sequence
  double loss = 0;                      ///< mean over the same text, nats
};

/// A model with another tolerance, or its own, on the first `sequences` pieces of the length that it was trained on. Without pruning the
/// shares are empty.
Pruned pruned(const Study& study, const Artefact& model, std::optional<double> log_tolerance, int64_t sequences);

}  // namespace lethe
