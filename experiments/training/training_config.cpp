#include <torch/cuda.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <vector>

#include "experiments/data/sha256.hpp"
#include "experiments/models/json_members.hpp"
#include "experiments/training/conversion.hpp"

namespace lethe {
namespace {

// Every member with its JSON key; Config is TrainingConfig or const TrainingConfig.
template <class Config, class Visitor>
void visit_training(Config& config, Visitor&& visit) {
  visit("context_length", config.context_length);
  visit("batch_tokens", config.batch_tokens);
  visit("micro_batch_tokens", config.micro_batch_tokens);
  visit("total_tokens", config.total_tokens);
  visit("warmup_tokens", config.warmup_tokens);
  visit("learning_rate", config.learning_rate);
  visit("final_learning_rate", config.final_learning_rate);
  visit("decay_tokens", config.decay_tokens);
  visit("weight_decay", config.weight_decay);
  visit("beta1", config.beta1);
  visit("beta2", config.beta2);
  visit("epsilon", config.epsilon);
  visit("clip_norm", config.clip_norm);
  visit("loss_scale", config.loss_scale);
  visit("seed", config.seed);
  visit("checkpoint_tokens", config.checkpoint_tokens);
  visit("corpus", config.corpus);
  visit("tokenizer", config.tokenizer);
  visit("repeats", config.repeats);
  visit("packs_documents", config.packs_documents);
  visit("divergence_is_a_result", config.divergence_is_a_result);
  visit("zero", config.zero);
  visit("deterministic", config.deterministic);
  visit("gemms", config.gemms);
  visit("device", config.device);
  visit("recompute", config.recompute);
}

constexpr int64_t kMostTokens = int64_t{1} << 53;  // exact in double, and sums of some stay below 2^63

// The format of stored runs: 1 had the options of all mixers in the model, 2 has them in the mixer.
constexpr int64_t kRunFormat = 2;

template <class SomeRun, class Visitor>
void visit_run(SomeRun& run, Visitor&& visit) {
  visit("label", run.label);
  visit("model", run.model);
  visit("training", run.training);
  visit("conversion", run.conversion);
}

void expect_device_name(const std::string& name) {
  const bool numbered = name.starts_with("cuda:") && name.size() > 5 && name.size() < 8 &&
                        name.find_first_not_of("0123456789", 5) == std::string::npos;
  expect(name == "cpu" || name == "cuda" || numbered, "device", "cpu, cuda or cuda:N", name);
}

}  // namespace

void TrainingConfig::check() const {
  const auto whole = [](const char* name, int64_t value, int64_t least) {
    expect(value >= least && value <= kMostTokens, name, std::to_string(least) + " … 2^53", std::to_string(value));
  };
  const auto number = [](const char* name, double value, const char* range, bool good) {
    expect(good && std::isfinite(value), name, range, std::to_string(value));
  };
  whole("context_length", context_length, 1);
  whole("batch_tokens", batch_tokens, 1);
  whole("total_tokens", total_tokens, 1);
  whole("checkpoint_tokens", checkpoint_tokens, 0);
  expect(batch_tokens % context_length == 0, "batch_tokens",
         "a multiple of context_length " + std::to_string(context_length), std::to_string(batch_tokens));
  expect(micro_batch_tokens == 0 || (micro_batch_tokens > 0 && micro_batch_tokens % context_length == 0 &&
                                     batch_tokens % micro_batch_tokens == 0),
         "micro_batch_tokens", "0, or a multiple of context_length that divides batch_tokens",
         std::to_string(micro_batch_tokens));
  expect(warmup_tokens >= 0 && warmup_tokens <= total_tokens, "warmup_tokens", "0 … total_tokens",
         std::to_string(warmup_tokens));
  expect(decay_tokens >= 0 && decay_tokens <= total_tokens - warmup_tokens, "decay_tokens",
         "0 … total_tokens − warmup_tokens", std::to_string(decay_tokens));
  number("repeats", repeats, "0 … 1", repeats >= 0 && repeats <= 1);
  number("learning_rate", learning_rate, "> 0", learning_rate > 0);
  number("final_learning_rate", final_learning_rate, "0 … learning_rate",
         final_learning_rate >= 0 && final_learning_rate <= learning_rate);
  number("weight_decay", weight_decay, "≥ 0", weight_decay >= 0);
  number("beta1", beta1, "0 ≤ beta1 < 1", beta1 >= 0 && beta1 < 1);
  number("beta2", beta2, "0 ≤ beta2 < 1", beta2 >= 0 && beta2 < 1);
  number("epsilon", epsilon, "> 0", epsilon > 0);
  number("clip_norm", clip_norm, "> 0", clip_norm > 0);
  number(
      "loss_scale", loss_scale, "0, or a power of two from 1 to 2^24",
      loss_scale == 0 || (loss_scale >= 1 && loss_scale <= 0x1p24 && std::exp2(std::ilogb(loss_scale)) == loss_scale));
  expect(gemms == "measured" || gemms == "default", "gemms", "measured or default", gemms);
  expect_device_name(device);
  recompute_named(recompute);
}

void to_json(nlohmann::json& json, const TrainingConfig& config) {
  json = nlohmann::json::object();
  visit_training(config, JsonWriter{json});
}

void from_json(const nlohmann::json& json, TrainingConfig& config) {
  JsonReader reader(json, "training");
  visit_training(config, reader);
  reader.finish();
}

void to_json(nlohmann::json& json, const Run& run) {
  json = {{"format", kRunFormat}};
  visit_run(run, JsonWriter{json});
}

void from_json(const nlohmann::json& json, Run& run) {
  JsonReader reader(json, "run");
  int64_t format = 1;
  reader("format", format);
  const char* advice = format < kRunFormat ? " (train the model anew)" : " (a newer lethe wrote it: update this one)";
  expect(format == kRunFormat, "run.format", std::to_string(kRunFormat) + advice, std::to_string(format));
  visit_run(run, reader);
  reader.finish();
}

double learning_rate_at(const TrainingConfig& config, int64_t tokens_seen) {
  const auto seen = static_cast<double>(tokens_seen), warmup = static_cast<double>(config.warmup_tokens);
  if (seen < warmup) return config.learning_rate * seen / warmup;
  const double total = static_cast<double>(config.total_tokens), decay = static_cast<double>(config.decay_tokens);
  if (config.decay_tokens > 0) {
    const double left = std::clamp((total - seen) / decay, 0.0, 1.0);
    return config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * left;
  }
  const double share = seen < total ? (seen - warmup) / (total - warmup) : 1.0;
  return config.final_learning_rate +
         (config.learning_rate - config.final_learning_rate) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

void check_packing(const Run& run) {
  for (const MixerConfig& mixer : run.model.mixer.all())
    expect(!run.training.packs_documents || mixer.row().packs, "packs_documents", "mixers that keep sequences apart",
           mixer.row().name);
}

std::string identity(const Run& run, const Dataset& dataset) { return identity(run, dataset.content_hash()); }

std::string identity(const Run& run, const std::string& data_hash) {
  nlohmann::json parts = {
      {"format", kRunFormat}, {"model", run.model}, {"training", run.training}, {"data", data_hash}};
  for (const char* name : {"checkpoint_tokens", "corpus", "deterministic", "device", "divergence_is_a_result", "gemms",
                           "recompute", "zero"})
    parts["training"].erase(name);
  if (!run.model.residual_in_compute_dtype) parts["model"].erase("residual_in_compute_dtype");  // younger than format 2
  for (const char* name : {"decay_tokens", "loss_scale", "repeats"})                            // younger too
    if (parts["training"].at(name) == 0) parts["training"].erase(name);
  if (!run.training.packs_documents) parts["training"].erase("packs_documents");
  const auto without_younger = [](nlohmann::json& mixer) {
    if (mixer.contains("prune_by_mass") && !mixer.at("prune_by_mass").get<bool>()) mixer.erase("prune_by_mass");
    if (mixer.contains("write_gate") && !mixer.at("write_gate").get<bool>()) mixer.erase("write_gate");
    if (mixer.contains("sigmoid") && mixer.at("sigmoid").get<bool>()) mixer.erase("sigmoid");
    if (mixer.contains("forget_bias") && mixer.at("forget_bias") == 0) mixer.erase("forget_bias");
    if (mixer.at("name") == "deltanet" && !mixer.at("sum_norm").get<bool>()) mixer.erase("sum_norm");
  };
  nlohmann::json& mixers = parts["model"]["mixer"];
  if (mixers.is_array())
    for (nlohmann::json& mixer : mixers) without_younger(mixer);
  else without_younger(mixers);
  if (run.conversion) {
    parts["conversion"] = *run.conversion;
    parts["conversion"].erase("source_data");
    // As text where the source has none itself; further ones by their hash: quotes within quotes would double with each.
    const Run& source = run.conversion->source;
    const std::string theirs = identity(source, source_data(*run.conversion, data_hash));
    parts["conversion"]["source"] = source.conversion ? sha256(theirs) : theirs;
  }
  return parts.dump();
}

torch::Device device_named(const std::string& name) {
  expect_device_name(name);
  const torch::Device device(name);
  const int64_t there = device.is_cuda() ? static_cast<int64_t>(torch::cuda::device_count()) : 1;
  expect(std::max<int64_t>(device.index(), 0) < there, "device",
         "cpu, or one of the " + std::to_string(there) + " CUDA devices that this build and this machine have", name);
  return device;
}

std::string artefact_name(const Run& run, const Dataset& dataset) { return artefact_name(run, dataset.content_hash()); }

std::string artefact_name(const Run& run, const std::string& data_hash) {
  return sha256(identity(run, data_hash)).substr(0, 16);
}

}  // namespace lethe
