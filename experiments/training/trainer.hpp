#pragma once
// A training under way: model, optimizer, and the place in the stream of sequences.

#include <torch/optim/adamw.h>

#include <filesystem>
#include <string>

#include "experiments/training/training.hpp"

namespace lethe {

/// Takes optimizer steps one by one. All of its state is the weights, the optimizer's moments and the number of steps
/// done: the batches are a function of that number, so a checkpoint is enough to go on bit-identically.
class Trainer {
 public:
  /// A fresh training of `run`, at step 0.
  ///
  /// throws  std::invalid_argument where a part of the run is bad, or the data has tokens that the model has not
  Trainer(const Run& run, const Dataset& dataset);

  /// What one step has seen and done.
  struct Step {
    double loss;           ///< mean over the batch, nats, before the update
    double learning_rate;  ///< of the update
    double gradient_norm;  ///< over all parameters, before clipping
  };

  /// One step: the gradient of one batch, micro-batch by micro-batch, clipped, then AdamW.
  ///
  /// throws  std::runtime_error where the loss or the gradient is not finite; the weights are then those before the step
  Step step();

  int64_t steps_done() const { return steps_done_; }
  LanguageModel& model() { return model_; }

  /// Writes everything to `path`: beside it first, to the disk, then renamed.
  void save(const std::filesystem::path& path);

  /// Goes on where the checkpoint at `path` stood.
  ///
  /// returns  false, with the trainer as it was, where there is none or it is one of another run
  bool resume(const std::filesystem::path& path);

 private:
  void expect_finite(const char* name, double value) const;

  Run run_;
  const Dataset& dataset_;
  LanguageModel model_;
  torch::optim::AdamW optimizer_;
  int64_t steps_done_ = 0;
};

/// Reads the weights of a checkpoint into `model`.
void load_weights(LanguageModel& model, const std::filesystem::path& path);

}  // namespace lethe
