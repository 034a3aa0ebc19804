#pragma once
// The output of lethe train before, during and after a training.

#include <string>

#include "experiments/commands/commands.hpp"
#include "experiments/commands/progress_line.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// A loss in nats a token of a split as bits a byte of its text; NaN where the split has no bytes.
double bits_per_byte(double loss, const Dataset& dataset, const std::string& split);

/// Prints the training that is about to start: corpus, model, tokens, folder, checkpoints; on standard error.
///
/// reads  folder: of the artefact; source: of a model that starts from another, its folder, else empty; limit: training_limit
///        (training/machine_limit.hpp)
void print_opening(const Run& run, const Dataset& dataset, const std::filesystem::path& folder,
                   const std::filesystem::path& source, const TrainingLimit& limit);

/// The progress of one training on standard error: a line that is rewritten, and lines that stay: the step of resumption, the estimated time,
/// and the validation losses.
class TrainingLines {
 public:
  explicit TrainingLines(const Dataset& dataset, const Deadline& deadline = {}) : dataset_(dataset), line_(deadline) {}
  void show(const Progress& progress);

 private:
  const Dataset& dataset_;
  ProgressLine line_;
  bool began_ = false, timed_ = false;
};

/// Prints the losses, a sample of a model that was trained by this call, and the next calls to try; the last line is the folder.
///
/// reads  sample: tokens of the sample, 0: none
void print_end(const Artefact& artefact, const Dataset& dataset, const Place& place, int64_t sample);

}  // namespace lethe
