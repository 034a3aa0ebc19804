#pragma once
// Training a language model: deterministic, resumable, logged.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

#include "experiments/data/dataset.hpp"
#include "experiments/models/config.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {

/// The configuration of a training. All durations are in tokens, as in the papers.
struct TrainingConfig {
  int64_t context_length = 0;
  int64_t batch_tokens = 0;        ///< per optimizer step; a multiple of context_length
  int64_t micro_batch_tokens = 0;  ///< per forward and backward (accumulation), divides batch_tokens; 0: all of it
  int64_t total_tokens = 0;        ///< rounded up to whole steps
  int64_t warmup_tokens = 0;       ///< linear from 0, at the tokens seen before a step: step 0 has rate 0
  double learning_rate = 1e-3;
  double final_learning_rate = 0;  ///< at the end
  /// 0: a cosine from warm-up to end. Else the rate stays constant until the last decay_tokens, over which it falls linearly (WSD)
  int64_t decay_tokens = 0;
  double weight_decay = 0.1;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double clip_norm = 1.0;  ///< global gradient norm
  /// For float16: the loss's factor before the backward pass at first, a power of two that then follows the gradient (loss_scale.hpp). 0: none
  double loss_scale = 0;
  uint64_t seed = 0;              ///< of initialization and data order
  int64_t checkpoint_tokens = 0;  ///< between checkpoints, at most ten minutes; 0: that alone. Not part of the identity
  std::string corpus = "bible";
  std::string tokenizer = "bytes";
  /// Whether each document of a training sequence is one of its own (cu_seqlens): no layer then sees across documents
  bool packs_documents = false;
  double repeats = 0;  ///< share of the training sequences that repeat their beginning, see Dataset::training_batch
  /// Whether a loss, gradient or activation that is not finite is a result: training then ends with the weights before that step.
  /// Otherwise it is an error. Not part of the identity.
  bool divergence_is_a_result = false;
  /// Whether several processes share AdamW's moments (ZeRO-1): 1/n of their memory each. Not part of the identity
  bool zero = false;
  /// Whether equal calls give equal bits on a GPU too: ATen then takes its deterministic kernels. Not part of the identity
  bool deterministic = false;
  /// "measured": on a GPU each large matrix product takes the algorithm that was fastest when the process first ran it
  /// (optimized/torch/products.hpp), but ATen's where `deterministic`. "default": ATen's. Not part of the identity
  std::string gemms = "measured";
  /// "cpu", "cuda" or "cuda:N": the device of training and evaluation. Not part of the identity
  std::string device = "cpu";
  /// What a step computes again instead of keeping it: none, activations or block (recompute.hpp). Not part of the identity
  std::string recompute = "none";

  int64_t steps() const { return (total_tokens + batch_tokens - 1) / batch_tokens; }

  /// throws  std::invalid_argument "name: expected …, found …" for an invalid configuration
  void check() const;
};

// JSON with the member names as keys; unknown keys and wrong types are one clear error, absent members have their defaults.
void to_json(nlohmann::json& json, const TrainingConfig& config);
void from_json(const nlohmann::json& json, TrainingConfig& config);

/// Linear warm-up from 0, then a cosine from the end of the warm-up to the final rate at total_tokens; with decay_tokens constant, then linear.
///
/// source   cosine: FoX Appendix B; the paper's runs end at a tenth of the rate, ACP's at 0. Constant and decay: Hu 2024, "MiniCPM" (WSD)
/// reads    tokens_seen before the step
double learning_rate_at(const TrainingConfig& config, int64_t tokens_seen);

struct Conversion;  // conversion.hpp
class World;        // world.hpp

/// One model to train: its configuration, its training and its data.
struct Run {
  std::string label;  ///< for users; not part of the identity
  ModelConfig model;
  TrainingConfig training;
  /// the trained model that this one starts from; absent: from a seed
  std::shared_ptr<const Conversion> conversion = {};
};

// JSON with the member names as keys, and the format: a run of another format is refused.
void to_json(nlohmann::json& json, const Run& run);
void from_json(const nlohmann::json& json, Run& run);

/// throws  std::invalid_argument where documents are to be packed and a mixer doesn't keep sequences apart
void check_packing(const Run& run);

/// The identity of a trained model, as canonical JSON (sorted keys): the format, the configurations of model and training with
/// the seed, the data's content and, for a converted model, its source's identity and the conversion's options; not the label,
/// the data's path or the interval of checkpoints.
std::string identity(const Run& run, const Dataset& dataset);
std::string identity(const Run& run, const std::string& data_hash);

/// The name of a run's artefact: the first 16 hexadecimal digits of the SHA-256 of its identity.
std::string artefact_name(const Run& run, const Dataset& dataset);
std::string artefact_name(const Run& run, const std::string& data_hash);

/// The files of a trained model's folder:
///   run.json       the Run
///   log.jsonl      a line a step: step, tokens (seen after it), loss (of its batch, nats), learning_rate, gradient_norm
///                  (before clipping), tokens_per_second, seconds (of training, over all resumptions); for models with a
///                  state, at every tenth of the training, largest_state and largest_value on its batch before the step;
///                  at the end of every tenth validation_loss, over a part of the split (validation.hpp)
///   checkpoint.pt  model and optimizer, under their SHA-256, with steps done, identity and the place in log.jsonl;
///                  checkpoint.previous.pt is the one before it
///   done.json      written last, with its SHA-256: final losses, wall time, processes, threads, data hash, identity, hashes of log.jsonl and the
///                  weights; machine, commit and versions; diverged: the reason for an early end of the training, or null
///   failed.json    the error that ended the training, with its SHA-256; absent while it goes on, and after a signal
///   measured/      a file a measurement: see Study::measured (claims/claim.hpp)
///   lock           held during training, with the number of the process
struct Artefact {
  std::filesystem::path folder;
  Run run;
};

/// What a machine can give a training: training_limit (machine_limit.hpp).
struct TrainingLimit {
  double tokens_per_second = std::numeric_limits<double>::quiet_NaN();  ///< not a number where it was not measured
  bool prunes = false;  ///< the training skips some of the FLOPs that this counts, so it may be faster
};

/// The contents of the progress line, one step at a time.
struct Progress {
  int64_t step = 0, steps = 0;
  double loss = 0, tokens_per_second = 0, seconds_left = 0;
  std::string notice = {};  ///< one line for people, e.g. what a training waits for; there are no figures with it
  double validation_loss =
      std::numeric_limits<double>::quiet_NaN();  ///< of this step where it is due, see validation.hpp
  int64_t resumed_at = 0;                        ///< steps of earlier processes
  TrainingLimit limit = {};
};

/// Thrown by a progress callback: the training saves a checkpoint after its current step, and ends.
class Interrupted : public std::runtime_error {
 public:
  static constexpr int kDeadline = 0;  ///< in place of a signal: the time of the call is over

  Interrupted(int signal, const std::string& message) : std::runtime_error(message), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

/// The trained model of `run`: read from `root` where it is finished, resumed where it has begun, else trained now. A killed
/// training continues at its last checkpoint, bit-identically to one that was never killed. Where another process trains the
/// same run, this one waits for it and reads the result. A damaged run.json of a finished model is written anew.
///
/// On the CPU the same run gives the same bits on the same machine with the same number of threads: sums are split over
/// threads, and the order of a sum decides its last bit. On a GPU that holds where the training is `deterministic`; else two
/// runs may differ in their last bits.
///
/// The source of a converted model is read from `root`; it is trained first where it is absent and has the same data.
///
/// reads    root: the folder of the models (artefacts/models), the artefact's folder is root/artefact_name; progress: called
///          after every step, and with a notice while this process waits, where a damaged file is passed over, and where no
///          commit is known; for a finished artefact never
/// throws   std::invalid_argument for an invalid configuration, and one whose model or batch exceeds the memory;
///          std::runtime_error where a file can't be written, or no checkpoint is whole; NotFinite, a std::runtime_error, where
///          loss, gradient or activations are not finite and the configuration makes that an error; Interrupted as `progress`
Artefact trained(const Run& run, const Dataset& dataset, const std::filesystem::path& root,
                 const std::function<void(const Progress&)>& progress = {});

/// The same by several processes, each of which calls it. Their number is no part of a model's name. The first alone reads and writes below `root`,
/// calls `progress`, and trains a source that is absent.
Artefact trained(const Run& run, const Dataset& dataset, const std::filesystem::path& root,
                 const std::function<void(const Progress&)>& progress, World& world);

/// The model of an artefact, in evaluation mode, on the device named `device`; by default the device of its training.
///
/// throws  as device_named and load_weights; std::invalid_argument where the memory is too small
LanguageModel load_model(const Artefact& artefact);
LanguageModel load_model(const Artefact& artefact, const std::string& device);

/// Whether an artefact's folder has the end of its training: done.json, and the checkpoint unless done.json says that the weights are
/// absent: "weights": "absent" stands in an imported artefact, whose weights stayed where it was trained.
bool is_finished(const std::filesystem::path& folder);

/// Whether `trained` finds this run finished below `root`: is_finished, with a whole done.json of its identity.
bool is_finished(const Run& run, const Dataset& dataset, const std::filesystem::path& root);

/// The device of a name in the format of TrainingConfig::device.
///
/// throws  std::invalid_argument for another name, and for a GPU that is absent from this build or machine
torch::Device device_named(const std::string& name);

}  // namespace lethe
