#pragma once
// The validation loss in the course of a training.

#include "experiments/training/trainer.hpp"

namespace lethe {

/// The validation loss after the last step of every tenth of a training, over the first sequences of the split: as many tokens as a
/// batch has, at most. NaN after other steps, where the split is shorter than one sequence, and where the loss is not finite. A
/// function of the weights alone: a resumed training logs the same.
double validation_loss_if_due(Trainer& trainer, const Run& run, const Dataset& dataset);

}  // namespace lethe
