#pragma once
// The rule for a diverged training.

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/training/training.hpp"

namespace lethe {

/// The figures of a training after the swap.
struct Course {
  std::vector<double> losses;       ///< one per step's batch, nats
  bool stopped = false;             ///< by a loss, gradient or activation that was not finite
  double validation_loss = 0;       ///< of the final weights; NaN where not finite
  double loss_without_context = 0;  ///< validation loss of the row that sees no other token; NaN where there is none
  double largest = 0;               ///< max |S| and |y| over all probes of the training
  int64_t vocabulary = 0;
};

enum class Outcome {
  kConverged,
  kNotFinite,        ///< stopped, or a loss at the end that is not finite
  kWorseThanChance,  ///< validation loss above ln(vocabulary)
  kWorseThanBlind,   ///< mean loss of the last tenth of the steps more than 0.2 nats above the loss without context
  kOverflowsFloat16  ///< none of those, but |S| or |y| above 65504, infinite in the paper's float16
};

/// The first of the outcomes above that holds, kNotFinite first.
Outcome outcome_of(const Course& course);

/// "converged", "not finite", "worse than chance", "worse than without context", "would overflow float16"
std::string to_string(Outcome outcome);

/// The course of a converted model's training, read from its artefact and that of the row without context; null: there is none.
Course course_of(const Artefact& artefact, const Artefact* without_context);

}  // namespace lethe
