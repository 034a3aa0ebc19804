#include "experiments/commands/bench_step.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/cuda.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "experiments/commands/bench_model.hpp"
#include "experiments/training/machine_limit.hpp"
#include "optimized/torch/products.hpp"

namespace lethe {
namespace {

using torch::Tensor;

constexpr int kWarmUp = 3;        // steps
constexpr size_t kAggregate = 0;  // of the allocator's statistics: all its pools
constexpr const char* kText =
    "text";  // [n·B,T+1] int64, in the file of the weights: n batches, which the steps take in turn

}  // namespace

Step::Step(const Run& run, const StepOptions& options, World& world)
    : run_(run), world_(world), with_optimizer_(!options.without_optimizer),
      model_(run.model, device_named(run.training.device), run.training.seed),
      exchange_(prepared(options), world, run.training.zero), optimizer_(model_->flat(), run.training, &exchange_) {
  read_text(options.weights);
}

FlatParameters& Step::prepared(const StepOptions& options) {
  if (!options.weights.empty()) read_weights(model_, file_ = read_safetensors(options.weights), options.weights);
  set_gates(model_, options.gates);
  model_->set_recompute(recompute_named(run_.training.recompute));
  measure_products(run_.training.gemms == "measured");
  return model_->flatten(true, world_.size());
}

void Step::read_text(const std::string& path) {
  const TrainingConfig& training = run_.training;
  const BatchShare share{world_.rank(), world_.size()};
  const int64_t sequences = share.micro_sequences(training), length = training.context_length + 1;
  micro_batches_ = share.sequences(training) / sequences;
  torch::manual_seed(training.seed);
  const auto given = file_.tensors.find(kText);
  const Tensor text = given != file_.tensors.end()
                          ? given->second
                          : torch::randint(run_.model.vocabulary, {sequences, length}, torch::kInt64);
  if (text.dim() != 2 || text.size(0) < 1 || text.size(0) % sequences != 0 || text.size(1) != length ||
      text.scalar_type() != torch::kInt64)
    throw std::invalid_argument(path + ": expected text [n·" + std::to_string(sequences) + "," +
                                std::to_string(length) + "] int64, found another shape or type");
  batches_.clear();
  for (const Tensor& one : text.to(model_->device()).split(sequences))
    batches_.push_back({one.narrow(1, 0, training.context_length).contiguous(),
                        one.narrow(1, 1, training.context_length).contiguous()});
}

void Step::take(int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Dataset::Batch batch = batch_of_next_step();
    ++taken_;
    if (with_optimizer_) {
      figures_ = take_step(
          model_, optimizer_, run_.training.learning_rate, micro_batches_, [&](int64_t) { return batch; }, &exchange_);
    } else {
      for (int64_t micro = 0; micro < micro_batches_; ++micro)
        losses_ = model_->accumulate_gradients(batch.tokens, batch.labels, 1.0 / static_cast<double>(tokens()));
    }
  }
  wait();
}

void Step::wait() const {
  if (model_->device().is_cuda()) torch::cuda::synchronize();
}

double Step::timed(int64_t count) {
  world_.sum(torch::zeros(1, torch::TensorOptions(model_->device()))).wait();
  wait();
  const auto start = std::chrono::steady_clock::now();
  take(count);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Step::set_context(int64_t context) {
  if (world_.size() > 1)
    throw std::invalid_argument("context: expected one process, found " + std::to_string(world_.size()));
  if (file_.tensors.contains(kText))
    throw std::invalid_argument("context: expected that of the file's text, found " + std::to_string(context));
  TrainingConfig changed = run_.training;
  changed.context_length = context;
  changed.check();
  run_.training = changed;
  read_text("");
}

std::pair<double, double> Step::figures() {
  model_->flat().gradient.zero_();
  exchange_.begin();
  const Dataset::Batch& batch = batch_of_next_step();
  const auto answered = static_cast<double>(batch.tokens.numel() * world_.size());
  const Tensor losses = model_->accumulate_gradients(batch.tokens, batch.labels, 1 / answered);
  exchange_.finish();
  return {losses.mean().item<double>(), optimizer_.gradient_norm().item<double>()};
}

int64_t allocated_bytes(const torch::Device& device, bool peak) {
  const auto of_device = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& stats = of_device.allocated_bytes[kAggregate];
  return peak ? stats.peak : stats.current;
}

namespace {

nlohmann::json at_context(Step& step, int64_t context) {
  const torch::Device device = step.model()->device();
  if (device.is_cuda()) c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
  step.set_context(context);
  step.take(1);
  nlohmann::json figures = {{"context", context},
                            {"tokens", step.tokens()},
                            {"flops_per_token", training_flops_per_token(step.run().model, context)}};
  if (device.is_cuda()) figures["peak_bytes"] = allocated_bytes(device, true);
  figures["product_flops_per_second"] = product_flops_per_second(device, dtype_named(step.run().model.compute_dtype));
  return figures;
}

nlohmann::json losses_of(Step& step, int64_t count) {
  nlohmann::json losses = nlohmann::json::array();
  for (; count > 0; --count) {
    step.timed(step.world().from_first(1));
    losses.push_back(step.loss());
  }
  return losses;
}

// Memory that steps have used goes back to the device; weights, moments and tokens stay.
nlohmann::json at_rest(Step& step) {
  const torch::Device device = step.model()->device();
  if (!device.is_cuda()) return nlohmann::json::object();
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(device.type());
  allocator->emptyCache();
  return {{"held_bytes", allocator->getDeviceStats(device.index()).reserved_bytes[kAggregate].current},
          {"free_bytes", allocator->getMemoryInfo(device.index()).first}};
}

}  // namespace

void serve(Step& step) {
  const auto [loss, norm] = step.figures();  // of the weights as they were read
  step.take(kWarmUp);
  if (!step.world().is_first()) {
    while (const int64_t count = step.world().from_first()) step.timed(count);
    return;
  }
  nlohmann::json ready = {{"loss", loss}, {"gradient_norm", norm}, {"tokens", step.tokens()}};
  if (const torch::Device device = step.model()->device(); device.is_cuda())
    ready["peak_bytes"] = allocated_bytes(device, true);
  std::cout << "ready " << ready.dump() << std::endl;
  std::string word;
  while (std::cin >> word && word != "stop") {
    if (word == "rest") {
      std::cout << at_rest(step).dump() << std::endl;
      continue;
    }
    if (word != "go" && word != "losses" && word != "context")
      throw std::invalid_argument("standard input: expected go, losses, context, rest or stop, found '" + word + "'");
    std::string number;
    std::cin >> number;
    const int64_t count = std::atoll(number.c_str());
    if (count < 1)
      throw std::invalid_argument("standard input: expected a number from 1 on after " + word + ", found '" + number +
                                  "'");
    if (word == "go") std::cout << step.timed(step.world().from_first(count)) << std::endl;
    else if (word == "losses") std::cout << losses_of(step, count).dump() << std::endl;
    else std::cout << at_context(step, count).dump() << std::endl;
  }
  step.world().from_first(0);
}

}  // namespace lethe
