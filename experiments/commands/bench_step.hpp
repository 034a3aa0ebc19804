#pragma once
// The training step whose speed `lethe bench` measures.

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/models/safetensors.hpp"
#include "experiments/training/trainer.hpp"

namespace lethe {

struct StepOptions {
  std::string weights;            ///< a file to start from, and the text of the steps; empty: drawn from the seed
  std::string gates = "initial";  ///< as set_gates
  bool without_optimizer = false;
};

/// The training step on random tokens, the same in every step and on every rank; on those of the file of the weights where it has some, in turn.
class Step {
 public:
  /// throws  std::invalid_argument for a file without the model's weights, or with a text of another shape
  Step(const Run& run, const StepOptions& options, World& world);

  /// Takes `count` steps and waits for the device.
  void take(int64_t count);
  /// Seconds of `count` steps that all ranks take; their clocks start together.
  double timed(int64_t count);

  /// Steps of as many tokens in sequences of this length from now on, drawn anew.
  ///
  /// throws  std::invalid_argument for several ranks, for tokens of a file, and where TrainingConfig::check does
  void set_context(int64_t context);

  /// Loss and gradient norm of the next step, with the weights as they are.
  std::pair<double, double> figures();

  int64_t tokens() const { return run_.training.batch_tokens; }
  double loss() const { return figures_.loss.item<double>(); }  ///< of the last step
  LanguageModel& model() { return model_; }
  World& world() { return world_; }
  const Run& run() const { return run_; }

 private:
  FlatParameters& prepared(const StepOptions& options);
  void read_text(const std::string& path);
  void wait() const;
  const Dataset::Batch& batch_of_next_step() const { return batches_[taken_ % batches_.size()]; }

  Run run_;
  World& world_;
  bool with_optimizer_;
  Safetensors file_;
  LanguageModel model_;
  GradientExchange exchange_;
  AdamW optimizer_;
  int64_t micro_batches_ = 1;
  std::vector<Dataset::Batch> batches_;
  size_t taken_ = 0;  // steps
  StepFigures figures_;
  torch::Tensor losses_;
};

/// Bytes that the allocator has given out on a GPU: now, or at most since its peak was reset.
int64_t allocated_bytes(const torch::Device& device, bool peak);

/// Steps on command. Prints "ready" and figures as JSON after the first steps; then answers each line of standard input by one:
///   go N       takes N steps: their seconds
///   losses N   takes N steps: the loss of each
///   context N  sequences of N tokens from now on: their figures after a step, with the FLOPs a token, and those a second of one large product
///   rest       keeps weights, moments and tokens alone, so that other processes have a GPU's memory: the bytes it holds, and those free
/// The end of the input, or another line, ends it.
void serve(Step& step);

}  // namespace lethe
