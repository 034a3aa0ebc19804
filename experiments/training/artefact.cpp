#include <ATen/Parallel.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "experiments/certificate.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/evaluation/per_token_loss.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/footprint.hpp"
#include "experiments/models/not_finite.hpp"
#include "experiments/training/conversion.hpp"
#include "experiments/training/stored_artefact.hpp"
#include "experiments/training/trainer.hpp"
#include "experiments/training/validation.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kValidationSequences = 64;    // at most, for the loss in done.json
constexpr int64_t kProbes = 10;                 // measurements of a state's largest entries per training
constexpr double kLongestUnsaved = 600;         // seconds between checkpoints, at most
constexpr int64_t kFinished = 1, kToTrain = 0;  // what the first rank has found

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

using Watcher = std::function<void(const Progress&)>;

void notice(const Watcher& progress, const std::string& text) {
  if (progress) progress({.notice = text});
}

// By done.json; false where it can't be read.
bool weights_are_absent(const fs::path& folder) {
  try {
    return read_sealed(folder / "done.json").value("weights", "") == "absent";
  } catch (const std::exception&) {
    return false;
  }
}

// done.json of the run with this identity, or null.
nlohmann::json finished(const fs::path& folder, const std::string& identity, const Watcher& progress) {
  if (!is_finished(folder)) return nullptr;
  try {
    nlohmann::json done = read_sealed(folder / "done.json");
    if (done.value("identity", "") == identity) return done;
  } catch (const std::exception& error) {
    notice(progress, std::string(error.what()) + "; it is written anew from the checkpoint");
  }
  return nullptr;
}

nlohmann::json json_of(const Trainer::Extremes& extremes) {
  return {{"largest_state", extremes.state}, {"largest_value", extremes.value}};
}

// Steps until the end; checkpoints are written in another thread. Of several ranks the first reads clock and signals, and sends its decision with the
// next step.
class Training {
 public:
  // reads  log, progress: absent on all ranks but the first
  Training(Trainer& trainer, const Run& run, const Dataset& dataset, const fs::path& folder, TrainingLog* log,
           const Watcher& progress, const World& world)
      : trainer_(trainer), run_(run), dataset_(dataset), checkpoint_(folder / "checkpoint.pt"), log_(log),
        progress_(progress), is_alone_(world.size() == 1) {}

  void run() {
    const int64_t steps = run_.training.steps();
    while (trainer_.steps_done() < steps) {
      const StepLosses losses = step();
      if (trainer_.steps_done() == steps || is_due()) save();
      if (agreed_ == kStop && trainer_.steps_done() < steps) stop();
      if (progress_) report(losses);
    }
    wait_for_checkpoint();
  }

  // Takes a snapshot, and starts to write it after the last one is on the disk.
  void save() {
    wait_for_checkpoint();
    checkpoint_on_disk_ =
        std::async(std::launch::async, [snapshot = trainer_.snapshot(log_ ? log_->sync() : LogPosition{}),
                                        path = checkpoint_] { snapshot.write(path); });
    saved_ = std::chrono::steady_clock::now();
    steps_saved_ = trainer_.steps_done();
  }

  // throws  std::runtime_error where the checkpoint can't be written
  void wait_for_checkpoint() {
    if (checkpoint_on_disk_.valid()) checkpoint_on_disk_.get();
  }

 private:
  struct StepLosses {
    double training, validation;  // the latter where it is due, else NaN
  };

  // One step and its line.
  StepLosses step() {
    const TrainingConfig& config = run_.training;
    nlohmann::json line = nlohmann::json::object();
    if (run_.model.has_state() && trainer_.steps_done() % std::max<int64_t>(1, config.steps() / kProbes) == 0)
      line = json_of(trainer_.extremes());
    const auto step_start = std::chrono::steady_clock::now();
    if (!is_alone_ && request_ == kNothing && seconds_since(saved_) > kLongestUnsaved) request_ = kSave;
    const Trainer::Step result = trainer_.step(std::exchange(request_, kNothing));
    agreed_ = result.request;
    if (!log_) return {result.loss, std::numeric_limits<double>::quiet_NaN()};
    const int64_t done = trainer_.steps_done();
    line.update({{"step", done - 1},
                 {"tokens", done * config.batch_tokens},
                 {"loss", result.loss},
                 {"learning_rate", result.learning_rate},
                 {"gradient_norm", result.gradient_norm},
                 {"tokens_per_second", static_cast<double>(config.batch_tokens) / seconds_since(step_start)},
                 {"seconds", seconds_before_ + seconds_since(start_)}});
    const double validation = validation_loss_if_due(trainer_, run_, dataset_);
    if (std::isfinite(validation)) line["validation_loss"] = validation;
    log_->append(line);
    return {result.loss, validation};
  }

  bool is_due() const {
    const int64_t every = run_.training.checkpoint_tokens, batch = run_.training.batch_tokens;
    const int64_t tokens = trainer_.steps_done() * batch;
    return (every > 0 && tokens / every > (tokens - batch) / every) || agreed_ != kNothing ||
           (is_alone_ && seconds_since(saved_) > kLongestUnsaved);
  }

  void report(const StepLosses& losses) {
    const int64_t done = trainer_.steps_done(), steps = run_.training.steps();
    const double per_step = seconds_since(start_) / static_cast<double>(done - first_);
    try {
      progress_({.step = done,
                 .steps = steps,
                 .loss = losses.training,
                 .tokens_per_second = static_cast<double>(run_.training.batch_tokens) / per_step,
                 .seconds_left = per_step * static_cast<double>(steps - done),
                 .validation_loss = losses.validation,
                 .resumed_at = first_});
    } catch (const Interrupted& signal) {
      interrupted_ = signal;
      request_ = kStop;
      if (!is_alone_) return;
      if (steps_saved_ != done) save();
      stop();
    }
  }

  // Ends a training whose last step is saved.
  [[noreturn]] void stop() {
    wait_for_checkpoint();
    if (!interrupted_) throw Interrupted(SIGTERM, "rank 0 has stopped");
    throw Interrupted(interrupted_->signal(), std::string(interrupted_->what()) + ": step " +
                                                  std::to_string(trainer_.steps_done()) + " of " +
                                                  std::to_string(run_.training.steps()) + " is saved in " +
                                                  checkpoint_.string() + "; the same call goes on there");
  }

  static constexpr int64_t kNothing = 0, kSave = 1, kStop = 2;  // requests

  Trainer& trainer_;
  const Run& run_;
  const Dataset& dataset_;
  fs::path checkpoint_;
  TrainingLog* log_;
  Watcher progress_;
  bool is_alone_;
  int64_t request_ = kNothing, agreed_ = kNothing;
  std::optional<Interrupted> interrupted_;
  const int64_t first_ = trainer_.steps_done();
  const double seconds_before_ = log_ ? log_->seconds() : 0;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point saved_ = start_;
  int64_t steps_saved_ = -1;
  std::future<void> checkpoint_on_disk_;  // its destructor waits too
};

// Validation loss and largest entries of the final weights; null or absent where they are not finite.
nlohmann::json measured_at_the_end(Trainer& trainer, const Run& run, const Dataset& dataset) {
  nlohmann::json json = {{"validation_loss", nullptr}};  // also where the split is shorter than one sequence
  try {
    if (run.model.has_state()) json.update(json_of(trainer.extremes()));
    if (const int64_t length = run.training.context_length; dataset.sequence_count("valid", length) > 0) {
      json["validation_loss"] = per_token_loss(trainer.model(), dataset, "valid", length, kValidationSequences, {},
                                               run.training.packs_documents)
                                    .mean();
    }
  } catch (const NotFinite&) {
    if (!run.training.divergence_is_a_result) throw;
  }
  return json;
}

// Of every parameter's name and bytes, in the order of the model.
std::string hash_of_weights(const LanguageModel& model) {
  std::string listing;
  for (const auto& parameter : model->named_parameters()) {
    const torch::Tensor values = parameter.value().detach().to(torch::kCPU).contiguous();
    listing += sha256(std::string_view(static_cast<const char*>(values.const_data_ptr()), values.nbytes())) + "  " +
               parameter.key() + "\n";
  }
  return sha256(listing);
}

// The artefact's birth certificate.
nlohmann::json certificate(Trainer& trainer, const Run& run, const Dataset& dataset, const fs::path& folder,
                           TrainingLog& log, const nlohmann::json& diverged, int processes) {
  nlohmann::json json = birth_certificate(folder, "", trainer.model()->device());
  json.erase("command_line");
  json.update({{"identity", identity(run, dataset)},
               {"data", dataset.content_hash()},
               {"seed", run.training.seed},
               {"steps", trainer.steps_done()},
               {"seconds", log.seconds()},
               {"processes", processes},
               {"threads", at::get_num_threads()},
               {"device", run.training.device},
               {"training_loss", log.last_losses()},
               {"log", log.sync()},
               {"weights_sha256", hash_of_weights(trainer.model())},
               {"diverged", diverged}});
  json.update(measured_at_the_end(trainer, run, dataset));
  return json;
}

}  // namespace

bool is_finished(const fs::path& folder) {
  std::error_code unreadable;
  return fs::exists(folder / "done.json", unreadable) &&
         (fs::exists(folder / "checkpoint.pt", unreadable) || weights_are_absent(folder));
}

bool is_finished(const Run& run, const Dataset& dataset, const fs::path& root) {
  return !finished(root / artefact_name(run, dataset), identity(run, dataset), {}).is_null();
}

Artefact trained(const Run& run, const Dataset& dataset, const fs::path& root, const Watcher& progress) {
  return trained(run, dataset, root, progress, World::alone());
}

namespace {

void expect_memory_of_step(const Run& run, const World& world) {
  const int64_t tokens =
      BatchShare{world.rank(), world.size()}.micro_sequences(run.training) * run.training.context_length;
  expect_memory("a step of " + std::to_string(tokens) + " tokens (micro_batch_tokens)",
                footprint(run.model, tokens).total(), device_named(run.training.device));
}

// The steps of a run on any rank after the first; the first has the files.
void train_beside_the_first(const Run& run, const Dataset& dataset, const Artefact& artefact, World& world) {
  Trainer trainer(run, dataset, nullptr, world);
  trainer.resume(artefact.folder / "checkpoint.pt");
  Training training(trainer, run, dataset, artefact.folder, nullptr, {}, world);
  try {
    training.run();
  } catch (const NotFinite&) {
    if (!run.training.divergence_is_a_result) throw;
    training.save();
  }
}

// Calls `work`; where it ends by an error but a signal, failed.json keeps it for `lethe list`.
void noting_failure(const fs::path& folder, const std::function<void()>& work) {
  const fs::path note = folder / "failed.json";
  fs::remove(note);
  try {
    work();
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    try {
      write_sealed(note, {{"error", as_utf8(error.what())}});
    } catch (const std::exception&) {  // e.g. a full disk: the error itself is what matters
    }
    throw;
  }
}

void write_run(const Artefact& artefact) {
  write_whole(artefact.folder / "run.json", nlohmann::json(artefact.run).dump(1) + "\n");
}

// Writes run.json of a finished model anew where it isn't that of done.json.
void restore_run(const Artefact& artefact, const Watcher& progress) {
  if (read_artefact(artefact.folder).broken.empty()) return;
  notice(progress, (artefact.folder / "run.json").string() +
                       ": expected the run of done.json, found another or a damaged file; it is written anew");
  write_run(artefact);
}

void train(const Run& run, const Dataset& dataset, const Artefact& artefact, const LanguageModel& source,
           const Watcher& progress, World& world) {
  Trainer trainer(run, dataset, source, world);
  const auto resumed =
      trainer.resume(artefact.folder / "checkpoint.pt", [&](const std::string& damage) { notice(progress, damage); });
  TrainingLog log(artefact.folder / "log.jsonl", resumed ? resumed->log : LogPosition{});
  fs::remove(artefact.folder / "done.json");  // a damaged one
  Training training(trainer, run, dataset, artefact.folder, &log, progress, world);
  nlohmann::json diverged;
  try {
    training.run();
  } catch (const NotFinite& error) {
    if (!run.training.divergence_is_a_result) throw;
    diverged = error.what();
    training.save();
    training.wait_for_checkpoint();
  }
  const nlohmann::json done = certificate(trainer, run, dataset, artefact.folder, log, diverged, world.size());
  if (const std::string reason = missing_commit(artefact.folder); !reason.empty()) notice(progress, reason);
  write_sealed(artefact.folder / "done.json", done);
}

}  // namespace

Artefact trained(const Run& run, const Dataset& dataset, const fs::path& root, const Watcher& progress, World& world) {
  run.model.check();
  run.training.check();
  check_packing(run);
  check_conversion(run);
  const Artefact artefact{root / artefact_name(run, dataset), run};
  if (!world.is_first()) {
    if (world.from_first() == kFinished) return artefact;
    expect_memory_of_step(run, world);
    train_beside_the_first(run, dataset, artefact, world);
    return artefact;
  }
  if (!is_finished(artefact.folder))
    expect_memory_of_step(run, world);  // before anything is left of a training that can't be
  fs::create_directories(artefact.folder);
  const FileLock lock(artefact.folder / "lock", [&](const std::string& holder) {
    notice(progress, "waiting for " + artefact.folder.string() + ", which process " + holder + " is training");
  });
  if (const nlohmann::json done = finished(artefact.folder, identity(run, dataset), progress); !done.is_null()) {
    if (done.contains("diverged") && !done["diverged"].is_null() && !run.training.divergence_is_a_result)
      throw NotFinite(done["diverged"].get<std::string>());
    restore_run(artefact, progress);
    world.from_first(kFinished);
    return artefact;
  }
  noting_failure(artefact.folder, [&] {
    write_run(artefact);
    LanguageModel source = nullptr;
    if (run.conversion) source = trained_source(run, dataset, root, progress);
    world.from_first(kToTrain);
    train(run, dataset, artefact, source, progress, world);
  });
  return artefact;
}

LanguageModel load_model(const Artefact& artefact) { return load_model(artefact, artefact.run.training.device); }

LanguageModel load_model(const Artefact& artefact, const std::string& device) {
  if (weights_are_absent(artefact.folder))
    throw std::invalid_argument(artefact.folder.string() +
                                ": expected its weights, found them absent: the artefact was " +
                                "imported; delete its done.json to train it here");
  LanguageModel model(artefact.run.model, device_named(device), std::nullopt);
  load_weights(model, artefact);
  model->eval();
  return model;
}

}  // namespace lethe
