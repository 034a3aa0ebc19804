#pragma once
// Training a language model: deterministic, resumable, logged.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "experiments/data/dataset.hpp"
#include "experiments/models/config.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {

/// How a model is trained. Everything is counted in tokens, as the papers do.
struct TrainingConfig {
  int64_t context_length = 0;
  int64_t batch_tokens = 0;        ///< of one optimizer step; a multiple of context_length
  int64_t micro_batch_tokens = 0;  ///< of one forward and backward; divides batch_tokens (accumulation); 0: all of batch_tokens
  int64_t total_tokens = 0;
  int64_t warmup_tokens = 0;       ///< linear from 0; the rate of a step is that of the tokens seen before it, so step 0 has rate 0
  double learning_rate = 1e-3;
  double final_learning_rate = 0;  ///< where the cosine ends
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double clip_norm = 1.0;          ///< global gradient norm
  uint64_t seed = 0;               ///< of initialization and data order
  int64_t checkpoint_tokens = 0;   ///< between checkpoints; 0: only at the end
  std::string corpus = "bible";
  std::string tokenizer = "bytes";

  void check() const;
};
void to_json(nlohmann::json& json, const TrainingConfig& config);
void from_json(const nlohmann::json& json, TrainingConfig& config);

/// Linear warm-up, then a cosine to the final rate.
double learning_rate_at(const TrainingConfig& config, int64_t tokens_seen);

/// One model to train: what it is, how, and on what.
struct Run {
  std::string label;  ///< for people; no part of the identity
  ModelConfig model;
  TrainingConfig training;
};
void to_json(nlohmann::json& json, const Run& run);
void from_json(const nlohmann::json& json, Run& run);

/// The name of the artefact that a run makes: a hash of the model's and training's configuration, of the data's content and of the seed.
std::string artefact_name(const Run& run, const Dataset& dataset);

/// What a trained model leaves: artefacts/models/<name>/{run.json, log.jsonl, checkpoint.pt, done.json}.
struct Artefact {
  std::filesystem::path folder;
  Run run;
};

/// What the progress line shows, a step at a time.
struct Progress {
  int64_t step = 0, steps = 0;
  double loss = 0, tokens_per_second = 0, seconds_left = 0;
};

/// The trained model of `run`: found under `root` where it is finished, resumed where it is begun, else trained now. A killed
/// training continues at its last checkpoint, bit-identically to one that was never killed.
///
/// throws  std::invalid_argument for a bad configuration; std::runtime_error where the loss is no longer finite
Artefact trained(const Run& run, const Dataset& dataset, const std::filesystem::path& root,
                 const std::function<void(const Progress&)>& progress = {});

/// The model of an artefact, in evaluation mode.
LanguageModel load_model(const Artefact& artefact);

}  // namespace lethe
