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

}  // namespace lethe
