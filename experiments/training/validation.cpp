#include "experiments/training/validation.hpp"

#include <algorithm>
#include <limits>

#include "experiments/evaluation/per_token_loss.hpp"
#include "experiments/models/not_finite.hpp"

namespace lethe {

double validation_loss_if_due(Trainer& trainer, const Run& run, const Dataset& dataset) {
  constexpr int64_t kParts = 10;
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const int64_t done = trainer.steps_done(), every = std::max<int64_t>(1, run.training.steps() / kParts);
  const int64_t length = run.training.context_length;
  if (done % every != 0 || dataset.sequence_count("valid", length) == 0) return kNone;
  try {
    return per_token_loss(trainer.model(), dataset, "valid", length, run.training.batch_tokens / length, {},
                          run.training.packs_documents)
        .mean();
  } catch (const NotFinite&) {
    return kNone;
  }
}

}  // namespace lethe
