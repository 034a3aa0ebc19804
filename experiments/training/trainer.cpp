#include "experiments/training/trainer.hpp"

#include <torch/nn/utils/clip_grad.h>
#include <torch/serialize.h>

#include <algorithm>
#include <any>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "experiments/files.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "experiments/models/not_finite.hpp"
#include "experiments/training/conversion.hpp"

namespace lethe {

using torch::Tensor;

namespace {

constexpr int64_t kProbedSequences = 4;  // at most, for the largest states and values

LanguageModel fresh_model(const Run& run, const Dataset& dataset, const LanguageModel& source) {
  run.training.check();
  if (run.model.vocabulary < dataset.vocabulary()) {
    throw std::invalid_argument("vocabulary: expected at least the " + std::to_string(dataset.vocabulary()) +
                                " tokens of " + dataset.name() + ", found " + std::to_string(run.model.vocabulary));
  }
  LanguageModel model(run.model, device_named(run.training.device));
  model->initialize(run.training.seed);
  if (source) convert_weights(run, source, model);
  return model;
}

torch::optim::AdamW make_optimizer(LanguageModel& model, const TrainingConfig& config) {
  const auto group = [&](std::vector<Tensor> parameters, double decay) {
    auto options = std::make_unique<torch::optim::AdamWOptions>(config.learning_rate);
    options->betas({config.beta1, config.beta2}).eps(config.epsilon).weight_decay(decay);
    return torch::optim::OptimizerParamGroup(std::move(parameters), std::move(options));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.push_back(group(model->decayed_parameters(), config.weight_decay));
  groups.push_back(group(model->undecayed_parameters(), 0));
  return torch::optim::AdamW(std::move(groups));
}

}  // namespace

Trainer::Trainer(const Run& run, const Dataset& dataset, const LanguageModel& source)
    : run_(run), dataset_(dataset), model_(fresh_model(run, dataset, source)),
      optimizer_(make_optimizer(model_, run.training)) {}

void Trainer::expect_finite(const char* name, double value) const {
  if (std::isfinite(value)) return;
  throw NotFinite(std::string(name) + ": expected a finite number at step " + std::to_string(steps_done_) + ", found " +
                  std::to_string(value));
}

// Sequences first … first + count of the next step's batch.
Dataset::Batch Trainer::batch(int64_t first, int64_t count) const {
  const TrainingConfig& config = run_.training;
  const int64_t sequences = config.batch_tokens / config.context_length;
  const auto batch =
      dataset_.training_batch(steps_done_ * sequences + first, count, config.context_length, config.seed);
  return {batch.tokens.to(model_->device()), batch.labels.to(model_->device())};
}

Trainer::Extremes Trainer::extremes() {
  if (!run_.model.has_state()) throw std::invalid_argument("mixer: expected one with a state, found another");
  const torch::NoGradGuard no_gradient;
  std::vector<std::any> layers;
  model_->forward(
      batch(0, std::min(kProbedSequences, run_.training.batch_tokens / run_.training.context_length)).tokens, &layers);
  Extremes extremes;
  for (const std::any& layer : layers) {
    const auto* trace = std::any_cast<StateTrace>(&layer);
    if (trace == nullptr) continue;
    extremes.state = std::max(extremes.state, trace->largest_state.item<double>());
    extremes.value = std::max(extremes.value, trace->largest_value.item<double>());
  }
  return extremes;
}

Trainer::Step Trainer::step() {
  const TrainingConfig& config = run_.training;
  const double rate = learning_rate_at(config, steps_done_ * config.batch_tokens);
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
  optimizer_.zero_grad();

  const int64_t sequences = config.batch_tokens / config.context_length;
  const int64_t micro_sequences =
      config.micro_batch_tokens > 0 ? config.micro_batch_tokens / config.context_length : sequences;
  double loss = 0;
  for (int64_t first = 0; first < sequences; first += micro_sequences) {
    const auto [tokens, labels] = batch(first, micro_sequences);
    const Tensor share = model_->losses(tokens, labels).sum() / static_cast<double>(config.batch_tokens);
    share.backward();
    loss += share.item<double>();
  }
  expect_finite("loss", loss);
  const double norm = torch::nn::utils::clip_grad_norm_(model_->parameters(), config.clip_norm);
  expect_finite("gradient norm", norm);
  optimizer_.step();
  ++steps_done_;
  return {loss, rate, norm};
}

void Trainer::save(const std::filesystem::path& path) {
  torch::serialize::OutputArchive archive, model, optimizer;
  model_->save(model);
  optimizer_.save(optimizer);
  archive.write("model", model);
  archive.write("optimizer", optimizer);
  archive.write("steps_done", c10::IValue(steps_done_));
  archive.write("identity", c10::IValue(identity(run_, dataset_)));
  std::ostringstream bytes;
  archive.save_to(bytes);
  write_whole(path, bytes.view());
}

bool Trainer::resume(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return false;
  torch::serialize::InputArchive archive, model, optimizer;
  archive.load_from(path.string(), model_->device());
  c10::IValue found, steps_done;
  archive.read("identity", found);
  if (found.toStringRef() != identity(run_, dataset_)) return false;
  archive.read("steps_done", steps_done);
  archive.read("model", model);
  archive.read("optimizer", optimizer);
  model_->load(model);
  optimizer_.load(optimizer);
  steps_done_ = steps_done.toInt();
  return true;
}

void load_weights(LanguageModel& model, const std::filesystem::path& path) {
  torch::serialize::InputArchive archive, weights;
  archive.load_from(path.string(), model->device());
  archive.read("model", weights);
  model->load(weights);
}

}  // namespace lethe
