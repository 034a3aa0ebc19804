#include "experiments/papers/adaptive_computation_pruning/savings/times.hpp"

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <optional>

#include "experiments/evaluation/pruned_share.hpp"
#include "experiments/models/mixers/attention.hpp"
#include "experiments/papers/adaptive_computation_pruning/savings/duel.hpp"
#include "optimized/torch/forgetting_attention.hpp"

namespace lethe::savings {
namespace {

/// Forward and backward of all layers' attention, on their traced inputs of one sequence.
void attend(const std::vector<AttentionTrace>& layers, std::optional<double> log_tolerance) {
  for (const AttentionTrace& layer : layers) {
    const auto input = [](const torch::Tensor& tensor) { return tensor.detach().requires_grad_(); };
    const auto query = input(layer.query), key = input(layer.key), value = input(layer.value),
               log_forget = input(layer.log_forget);
    const auto values = forgetting_attention(query, key, value, log_forget, std::nullopt, log_tolerance,
                                             layer.logit_bound, std::nullopt, std::nullopt, /*prune_by_mass=*/false);
    values.sum().backward();
  }
}

/// A training step that leaves the weights unchanged: forward, backward, clipping and AdamW at rate 0.
class Step {
 public:
  Step(LanguageModel model, const Dataset::Batch& batch)
      : model_(std::move(model)), batch_{batch.tokens.to(model_->device()), batch.labels.to(model_->device())},
        optimizer_(model_->parameters(), torch::optim::AdamWOptions(0.0)) {
    model_->train();
  }
  void operator()() {
    optimizer_.zero_grad();
    model_->losses(batch_.tokens, batch_.labels).mean().backward();
    torch::nn::utils::clip_grad_norm_(model_->parameters(), 1.0);
    optimizer_.step();
  }

 private:
  LanguageModel model_;
  Dataset::Batch batch_;
  torch::optim::AdamW optimizer_;
};

}  // namespace

int64_t sequences_a_step(const Run& run) {
  return std::max<int64_t>(1, run.training.micro_batch_tokens / run.training.context_length);
}

nlohmann::json measured_times(LanguageModel& model, const Run& run, const Dataset& dataset, int64_t repetitions) {
  const auto tolerance = run.model.mixer.only<AttentionConfig>().log_pruning_tolerance;
  const int64_t length = run.training.context_length, batch = sequences_a_step(run);
  const auto trace = traced(model, dataset, length, 0);
  const Duel attention = duel(
      repetitions, [&] { attend(trace, std::nullopt); }, [&] { attend(trace, tolerance); });
  Step without(with_tolerance(model, std::nullopt), dataset.sequences("valid", 0, batch, length));
  Step with(with_tolerance(model, tolerance), dataset.sequences("valid", 0, batch, length));
  const Duel step = duel(repetitions, without, with);
  return {{"operator", {{"without", attention.without}, {"with", attention.with}}},
          {"training_step", {{"without", step.without}, {"with", step.with}}}};
}

}  // namespace lethe::savings
