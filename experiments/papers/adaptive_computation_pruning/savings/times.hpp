#pragma once
// What pruning saves in time, of one trained model.

#include "experiments/claims/runs.hpp"
#include "experiments/data/dataset.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe::savings {

/// The sequences of a timed training step: those of a micro batch, at least one.
int64_t sequences_a_step(const Run& run);

/// The times of attention in all layers, forward and backward, and of a whole training step, without and with the run's pruning in turn, in seconds.
///
/// reads    dataset: one sequence of its validation text for attention, sequences_a_step() for the step, whose learning rate is 0
/// returns  {"operator": {"without": [...], "with": [...]}, "training_step": the same}, `repetitions` numbers each
nlohmann::json measured_times(LanguageModel& model, const Run& run, const Dataset& dataset, int64_t repetitions);

}  // namespace lethe::savings
