#pragma once
// The rule for a diverged training, written before the first run.

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// The figures of a training after the swap.
struct Course {
  std::vector<double> losses;   ///< one per step's batch, nats
  bool stopped = false;         ///< by a loss, gradient or activation that was not finite
  double validation_loss = 0;   ///< of the final weights; NaN where not finite
  double loss_before_swap = 0;  ///< validation loss of the model that was converted
  double largest = 0;           ///< max |S| and |y| over all probes of the training
  int64_t vocabulary = 0;
};

enum class Outcome {
  kConverged,
  kNotFinite,         ///< stopped, or a loss at the end that is not finite
  kWorseThanChance,   ///< validation loss above ln(vocabulary)
  kForgotWhatItKnew,  ///< mean loss of the last tenth of the steps more than 1 nat above that before the swap
  kOverflowsFloat16   ///< none of those, but |S| or |y| above 65504, infinite in the paper's float16
};

/// The first of the outcomes above that holds, kNotFinite first.
Outcome outcome_of(const Course& course);

/// "converged", "not finite", "worse than chance", "more than 1 nat above the loss before the swap", "would overflow float16"
std::string to_string(Outcome outcome);

/// The course of a converted model's training, read from its artefact and its source's.
Course course_of(const Artefact& artefact, const Artefact& source);

}  // namespace lethe
