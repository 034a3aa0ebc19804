#pragma once
// A training in progress: model, optimizer, and the position in the stream of sequences.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "experiments/training/batches.hpp"
#include "experiments/training/checkpoint.hpp"
#include "experiments/training/gradient_exchange.hpp"
#include "experiments/training/loss_scale.hpp"
#include "experiments/training/optimizer.hpp"
#include "experiments/training/training.hpp"
#include "experiments/training/world.hpp"

namespace lethe {

/// Figures of a step on its device: scalars, float64.
struct StepFigures {
  torch::Tensor loss;           ///< mean over the batch, nats, before the update
  torch::Tensor gradient_norm;  ///< over all parameters, before clipping
  torch::Tensor request;        ///< of the first rank
};

/// One step: the gradient of one batch, micro-batch by micro-batch, clipped, then AdamW. The host waits for nothing.
///
/// reads  model, flattened with gradients; micro_batch(i): micro-batches 0 … micro_batches − 1, of equal size, on the model's device; exchange: of
///        the optimizer, where each of several ranks has its own micro-batches; request: a number of the first rank, which all ranks receive; 0 on
///        the others; loss_scale: as AdamW::step's gradient_scale
StepFigures take_step(LanguageModel& model, AdamW& optimizer, double learning_rate, int64_t micro_batches,
                      const std::function<Dataset::Batch(int64_t)>& micro_batch, GradientExchange* exchange = nullptr,
                      int64_t request = 0, double loss_scale = 1);

/// Takes optimizer steps one by one. Its whole state is the weights, the optimizer's moments, the loss's scale and the number of steps done:
/// the batches are a function of that number, so a checkpoint is enough to continue bit-identically.
///
/// Each of several ranks computes the gradient of its share of every batch's sequences. All have the same weights; their number changes the order of
/// sums alone, and a checkpoint goes on at another number. All functions that change its state or a file are called on every rank.
class Trainer {
 public:
  /// Starts a training of `run` at step 0.
  ///
  /// reads   source: the trained source of run.conversion; absent where the run has none, a checkpoint will be resumed, or the rank is not the first
  /// throws  std::invalid_argument where a part of the run is invalid, the data has tokens outside the model's vocabulary, or the ranks can't share
  ///         the batch
  Trainer(const Run& run, const Dataset& dataset, const LanguageModel& source = nullptr, World& world = World::alone());

  /// The figures of one step.
  struct Step {
    double loss;           ///< mean over the batch, nats, before the update
    double learning_rate;  ///< of the update
    double gradient_norm;  ///< over all parameters, before clipping
    int64_t request;       ///< of the first rank
  };

  /// One step: the gradient of one batch, micro-batch by micro-batch, clipped, then AdamW; once more at half the loss's scale where that has one and
  /// the gradient is not finite.
  ///
  /// reads   request: a small number of the first rank, which all ranks receive; the others' is not read
  /// throws  NotFinite where loss, gradient or activations are not finite; the weights are then those before the step
  Step step(int64_t request = 0);

  /// The largest entries of a model with a state.
  struct Extremes {
    double state = 0;  ///< max |S_t| over the layers, heads and text positions of a batch
    double value = 0;  ///< max |o_t|
  };
  /// The largest entries on the next step's first micro-batch, at most four sequences of it, over the layers with a state. Documents are not kept
  /// apart.
  ///
  /// throws  NotFinite where activations are not finite; std::invalid_argument where the model has no state
  Extremes extremes();

  int64_t steps_done() const { return steps_done_; }
  LanguageModel& model() { return model_; }

  /// A checkpoint in host memory, which later steps don't change.
  struct Snapshot {
    CheckpointHeader header;
    std::map<std::string, torch::Tensor> tensors;

    /// See write_checkpoint; nothing for an empty one. May run beside the training.
    void write(const std::filesystem::path& path) const;
  };

  /// The state of all ranks after the steps done, on the first; empty on the others. `log`: of log.jsonl after them.
  Snapshot snapshot(const LogPosition& log);

  /// Resumes from the newest whole checkpoint at `path`, which the first rank reads: see newest_checkpoint, with its errors.
  ///
  /// returns  its header, on the first rank; nullopt, with the trainer unchanged, where there is none
  std::optional<CheckpointHeader> resume(const std::filesystem::path& path,
                                         const std::function<void(const std::string&)>& warn = {});

 private:
  void expect_finite(const char* name, double value) const;
  std::optional<CheckpointHeader> read(const std::filesystem::path& path, const AdamW::Moments& moments,
                                       const std::function<void(const std::string&)>& warn);
  void share_weights();

  Run run_;
  const Dataset& dataset_;
  World& world_;
  BatchShare share_;
  LanguageModel model_;
  GradientExchange exchange_;
  AdamW optimizer_;
  LossScale scale_;
  std::unique_ptr<Batches> batches_;  // from the step steps_done_ on
  int64_t steps_done_ = 0;
};

/// Reads the weights of an artefact's checkpoint into `model`, its own.
///
/// throws  std::runtime_error, std::invalid_argument where the checkpoint is damaged, or of another run than the artefact's
void load_weights(LanguageModel& model, const Artefact& artefact);

}  // namespace lethe
