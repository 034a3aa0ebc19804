#include "experiments/training/trainer.hpp"

#include <ATen/Context.h>

#include <algorithm>
#include <any>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <stdexcept>

#include "experiments/json_file.hpp"
#include "experiments/models/mixers/parts/state.hpp"
#include "experiments/models/not_finite.hpp"
#include "experiments/models/safetensors.hpp"
#include "experiments/training/conversion.hpp"
#include "experiments/training/stored_artefact.hpp"
#include "optimized/torch/products.hpp"

namespace lethe {

using torch::Tensor;

namespace {

constexpr int64_t kProbedSequences = 4;           // at most, for the largest states and values
constexpr const char* kLossScale = "loss_scale";  // of a checkpoint

// For the whole process: operators without a deterministic kernel are errors from here on.
void use_deterministic_kernels() {
  // Read when cuBLAS starts; its own default on Hopper GPUs, 32 MiB a stream, in two parts.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16384:2", 0);
  at::globalContext().setDeterministicAlgorithms(true, false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

LanguageModel fresh_model(const Run& run, const Dataset& dataset, const LanguageModel& source, const World& world) {
  run.training.check();
  if (run.training.deterministic) use_deterministic_kernels();
  measure_products(run.training.gemms == "measured");
  if (run.model.vocabulary < dataset.vocabulary()) {
    throw std::invalid_argument("vocabulary: expected at least the " + std::to_string(dataset.vocabulary()) +
                                " tokens of " + dataset.name() + ", found " + std::to_string(run.model.vocabulary));
  }
  check_packing(run);
  LanguageModel model(run.model, device_named(run.training.device), run.training.seed);
  if (source) convert_weights(run, source, model);
  model->flatten(true, world.size());
  model->set_recompute(recompute_named(run.training.recompute));
  return model;
}

}  // namespace

Trainer::Trainer(const Run& run, const Dataset& dataset, const LanguageModel& source, World& world)
    : run_(run), dataset_(dataset), world_(world), share_{world.rank(), world.size()},
      model_(fresh_model(run, dataset, source, world)), exchange_(model_->flat(), world, run.training.zero),
      optimizer_(model_->flat(), run.training, &exchange_), scale_(run.training.loss_scale) {
  share_.micro_sequences(run.training);
  share_weights();
}

StepFigures take_step(LanguageModel& model, AdamW& optimizer, double learning_rate, int64_t micro_batches,
                      const std::function<Dataset::Batch(int64_t)>& micro_batch, GradientExchange* exchange,
                      int64_t request, double loss_scale) {
  model->flat().gradient.zero_();
  const auto options = torch::TensorOptions(model->device()).dtype(torch::kFloat64);
  // What all ranks sum beside the gradient.
  const Tensor sums = torch::stack({torch::zeros({}, options), torch::full({}, request, options)}), loss = sums[0];
  const int64_t ranks = exchange ? exchange->world().size() : 1;
  try {
    for (int64_t micro = 0; micro < micro_batches; ++micro) {
      const auto [tokens, labels, sequences] = micro_batch(micro);
      const double share = 1 / static_cast<double>(tokens.numel() * micro_batches * ranks);
      if (exchange && micro + 1 == micro_batches) exchange->begin();
      loss.add_(model->accumulate_gradients(tokens, labels, share * loss_scale, sequences).sum(torch::kFloat64) *
                share);
    }
  } catch (const NotFinite&) {
    if (ranks == 1) throw;
    loss.fill_(std::numeric_limits<double>::quiet_NaN());  // for the other ranks, which wait for this one's gradient
  }
  if (exchange) {
    exchange->finish();
    exchange->world().sum(sums).wait();
  }
  const Tensor norm = optimizer.step(learning_rate, loss, loss_scale);
  return {loss, norm, sums[1]};
}

void Trainer::expect_finite(const char* name, double value) const {
  if (std::isfinite(value)) return;
  throw NotFinite(std::string(name) + ": expected a finite number at step " + std::to_string(steps_done_) + ", found " +
                  std::to_string(value));
}

Trainer::Extremes Trainer::extremes() {
  if (!run_.model.has_state()) throw std::invalid_argument("mixer: expected one with a state, found another");
  const torch::NoGradGuard no_gradient;
  std::vector<std::any> layers;
  const TrainingConfig& config = run_.training;
  const int64_t sequences = config.batch_tokens / config.context_length;
  const auto batch = dataset_.training_batch(steps_done_ * sequences, std::min(kProbedSequences, sequences),
                                             config.context_length, config.seed);
  model_->forward(batch.tokens.to(model_->device()), &layers);
  Extremes extremes;
  for (const std::any& layer : layers) {
    const auto* trace = std::any_cast<StateTrace>(&layer);
    if (trace == nullptr) continue;
    extremes.state = std::max(extremes.state, trace->largest_state.item<double>());
    extremes.value = std::max(extremes.value, trace->largest_value.item<double>());
  }
  return extremes;
}

Trainer::Step Trainer::step(int64_t request) {
  const TrainingConfig& config = run_.training;
  const double rate = learning_rate_at(config, steps_done_ * config.batch_tokens);
  const int64_t micro_batches = share_.sequences(config) / share_.micro_sequences(config);
  for (;;) {
    if (!batches_) batches_ = std::make_unique<Batches>(dataset_, config, steps_done_, model_->device(), share_);
    try {
      const StepFigures found = take_step(
          model_, optimizer_, rate, micro_batches, [&](int64_t) { return batches_->next(); }, &exchange_,
          world_.is_first() ? request : 0, scale_.value());
      // The step's only wait for the device.
      const Tensor figures = torch::stack({found.loss, found.gradient_norm, found.request}).cpu();
      const double* values = figures.const_data_ptr<double>();
      if (std::isfinite(values[0]) && !std::isfinite(values[1]) && scale_.halve()) {
        batches_.reset();
        continue;
      }
      expect_finite("loss", values[0]);
      expect_finite("gradient norm", values[1]);
      scale_.step_kept();
      ++steps_done_;
      return {values[0], rate, values[1], static_cast<int64_t>(values[2])};
    } catch (...) {
      batches_.reset();  // the step may be taken again
      throw;
    }
  }
}

namespace {

template <class Visitor>
void for_each_weight(LanguageModel& model, Visitor&& visit) {
  for (auto& parameter : model->named_parameters()) visit("weights." + parameter.key(), parameter.value());
  for (auto& buffer : model->named_buffers()) visit("weights." + buffer.key(), buffer.value());
}

template <class Visitor>
void for_each_moment(LanguageModel& model, const AdamW::Moments& moments, Tensor& steps, Visitor&& visit) {
  for (auto& parameter : model->named_parameters()) {
    visit("first_moments." + parameter.key(), FlatParameters::part_of(moments.first, parameter.value()));
    visit("second_moments." + parameter.key(), FlatParameters::part_of(moments.second, parameter.value()));
  }
  visit("steps", steps);
}

Tensor tensor_of(const LossScale::State& state) { return torch::tensor({state.exponent, state.kept}, torch::kInt64); }

// The tensors of a checkpoint, by name.
class StoredState {
 public:
  // throws  std::runtime_error naming the file where the checkpoint has none; no tensor has been read
  StoredState(const std::filesystem::path& path, const Checkpoint& checkpoint)
      : path_(path), header_(parse_safetensors(checkpoint.tensors, path.string())) {}

  // throws  std::runtime_error naming the file where it has no such tensor
  void operator()(const std::string& name, Tensor value) const {
    const torch::NoGradGuard no_gradient;
    const auto found = header_.tensors.find(name);
    const std::string expected = path_.string() + ": expected the weights of this model, found ";
    if (found == header_.tensors.end()) throw std::runtime_error(expected + "none named " + name);
    const StoredTensor& stored = found->second;
    if (value.sizes() != stored.shape || value.scalar_type() != stored.dtype)
      throw std::runtime_error(expected + name + " of another shape or type");
    value.copy_(stored.copy());
  }

 private:
  const std::filesystem::path& path_;
  SafetensorsHeader header_;
};

}  // namespace

Trainer::Snapshot Trainer::snapshot(const LogPosition& log) {
  const AdamW::Moments all_moments = optimizer_.moments();
  if (!world_.is_first()) return {};
  Snapshot snapshot{{identity(run_, dataset_), steps_done_, log}, {}};
  const auto keep = [&](const std::string& name, const Tensor& value) {
    snapshot.tensors[name] = value.detach().to(torch::kCPU, value.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  };
  for_each_weight(model_, keep);
  for_each_moment(model_, all_moments, optimizer_.steps(), keep);
  if (scale_.is_on()) keep(kLossScale, tensor_of(scale_.state()));
  return snapshot;
}

void Trainer::Snapshot::write(const std::filesystem::path& path) const {
  if (!tensors.empty()) write_checkpoint(path, header, pieces_of({.tensors = tensors}).bytes());
}

std::optional<CheckpointHeader> Trainer::read(const std::filesystem::path& path, const AdamW::Moments& moments,
                                              const std::function<void(const std::string&)>& warn) {
  const auto checkpoint = newest_checkpoint(path, identity(run_, dataset_), warn);
  if (!checkpoint) return std::nullopt;
  const StoredState state(path, *checkpoint);
  for_each_weight(model_, state);
  for_each_moment(model_, moments, optimizer_.steps(), state);
  if (scale_.is_on()) {
    const Tensor scale = tensor_of(scale_.state());
    state(kLossScale, scale);
    scale_.set({scale[0].item<int64_t>(), scale[1].item<int64_t>()});
  }
  return checkpoint->header;
}

std::optional<CheckpointHeader> Trainer::resume(const std::filesystem::path& path,
                                                const std::function<void(const std::string&)>& warn) {
  const AdamW::Moments moments = optimizer_.moments();
  std::optional<CheckpointHeader> header;
  if (world_.is_first()) header = read(path, moments, warn);
  if (world_.from_first(header.has_value()) == 0) return std::nullopt;
  steps_done_ = world_.from_first(header ? header->steps_done : 0);
  const auto [exponent, kept] = scale_.state();
  scale_.set({world_.from_first(exponent), world_.from_first(kept)});
  for (const Tensor& state : {moments.first, moments.second, optimizer_.steps()}) world_.broadcast(state).wait();
  optimizer_.set_moments(moments);
  share_weights();
  batches_.reset();
  return header;
}

// The first rank's weights to all.
void Trainer::share_weights() {
  const torch::NoGradGuard no_gradient;
  world_.broadcast(model_->flat().master).wait();
  for (const auto& buffer : model_->named_buffers()) world_.broadcast(buffer.value()).wait();
  model_->flat().refresh();
}

void load_weights(LanguageModel& model, const Artefact& artefact) {
  const auto path = artefact.folder / "checkpoint.pt";
  const Checkpoint checkpoint = read_checkpoint(path);
  expect_identity(artefact.run, checkpoint.header.identity, artefact.folder / "run.json", path);
  if (const auto end = artefact.folder / "done.json"; std::filesystem::exists(end)) {
    const nlohmann::json done = read_sealed(end);
    const int64_t steps = whole_number(done, "steps"), found = checkpoint.header.steps_done;
    if (done.value("diverged", nlohmann::json()).is_null() && steps != found)
      throw std::runtime_error(path.string() + ": expected step " + std::to_string(steps) + " (done.json), found " +
                               std::to_string(found) + "; delete done.json: the same training goes on from there");
  }
  for_each_weight(model, StoredState(path, checkpoint));
  model->flatten(false);
}

}  // namespace lethe
