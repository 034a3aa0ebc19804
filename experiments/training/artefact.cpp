#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "experiments/certificate.hpp"
#include "experiments/evaluation/per_token_loss.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/not_finite.hpp"
#include "experiments/training/conversion.hpp"
#include "experiments/training/trainer.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kValidationSequences = 64;  // at most, for the loss in done.json
constexpr int64_t kLastSteps = 20;            // their mean is the training loss in done.json
constexpr int64_t kProbes = 10;               // measurements of a state's largest entries per training

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// log.jsonl: exactly one line for each step that the weights have seen.
class Log {
 public:
  // Keeps the lines of the first `steps` steps; steps of a killed training after its checkpoint are repeated.
  Log(const fs::path& path, int64_t steps) {
    std::string kept;
    if (steps > 0) {
      std::istringstream old(read_whole(path));
      for (std::string line; std::cmp_less(lines_.size(), steps) && std::getline(old, line);) {
        lines_.push_back(nlohmann::json::parse(line));
        kept += line + "\n";
      }
      if (!std::cmp_equal(lines_.size(), steps)) {
        throw std::runtime_error(path.string() + ": expected the " + std::to_string(steps) +
                                 " steps of the checkpoint, found " + std::to_string(lines_.size()));
      }
    }
    write_whole(path, kept);
    file_.open(path, std::ios::app);
  }

  void append(const nlohmann::json& line) {
    lines_.push_back(line);
    file_ << line.dump() << '\n' << std::flush;
    if (!file_) throw std::runtime_error("log.jsonl: cannot be written");
  }

  double seconds() const { return lines_.empty() ? 0.0 : lines_.back().at("seconds").get<double>(); }

  double last_losses() const {
    const auto count = std::min<std::ptrdiff_t>(kLastSteps, std::ssize(lines_));
    const auto add = [](double sum, const nlohmann::json& line) { return sum + line.at("loss").get<double>(); };
    return std::accumulate(lines_.end() - count, lines_.end(), 0.0, add) / static_cast<double>(count);
  }

 private:
  std::vector<nlohmann::json> lines_;
  std::ofstream file_;
};

// done.json of the run with this identity, or null.
nlohmann::json finished(const fs::path& folder, const std::string& identity) {
  if (!fs::exists(folder / "done.json")) return nullptr;
  nlohmann::json done = nlohmann::json::parse(read_whole(folder / "done.json"));
  return done.value("identity", "") == identity ? done : nullptr;
}

nlohmann::json json_of(const Trainer::Extremes& extremes) {
  return {{"largest_state", extremes.state}, {"largest_value", extremes.value}};
}

void train(Trainer& trainer, const Run& run, const fs::path& folder, Log& log,
           const std::function<void(const Progress&)>& progress) {
  const TrainingConfig& config = run.training;
  const int64_t steps = config.steps(), first = trainer.steps_done();
  const double seconds_before = log.seconds();
  const auto start = std::chrono::steady_clock::now();
  while (trainer.steps_done() < steps) {
    nlohmann::json line = nlohmann::json::object();
    if (run.model.has_state() && trainer.steps_done() % std::max<int64_t>(1, steps / kProbes) == 0)
      line = json_of(trainer.extremes());
    const auto step_start = std::chrono::steady_clock::now();
    const Trainer::Step result = trainer.step();
    const int64_t done = trainer.steps_done(), tokens = done * config.batch_tokens;
    const double speed = static_cast<double>(config.batch_tokens) / seconds_since(step_start);
    const double seconds = seconds_since(start);
    line.update({{"step", done - 1},
                 {"tokens", tokens},
                 {"loss", result.loss},
                 {"learning_rate", result.learning_rate},
                 {"gradient_norm", result.gradient_norm},
                 {"tokens_per_second", speed},
                 {"seconds", seconds_before + seconds}});
    log.append(line);
    const bool due = config.checkpoint_tokens > 0 &&
                     tokens / config.checkpoint_tokens > (tokens - config.batch_tokens) / config.checkpoint_tokens;
    if (due || done == steps) trainer.save(folder / "checkpoint.pt");
    if (progress) {
      const double per_step = seconds / static_cast<double>(done - first);
      progress({done, steps, result.loss, static_cast<double>(config.batch_tokens) / per_step,
                per_step * static_cast<double>(steps - done)});
    }
  }
}

// Validation loss and largest entries of the final weights; null or absent where they are not finite.
nlohmann::json measured_at_the_end(Trainer& trainer, const Run& run, const Dataset& dataset) {
  nlohmann::json json = {{"validation_loss", nullptr}};  // also where the split is shorter than one sequence
  try {
    if (run.model.has_state()) json.update(json_of(trainer.extremes()));
    if (const int64_t length = run.training.context_length; dataset.sequence_count("valid", length) > 0) {
      json["validation_loss"] = per_token_loss(trainer.model(), dataset, "valid", length, kValidationSequences).mean();
    }
  } catch (const NotFinite&) {
    if (!run.training.divergence_is_a_result) throw;
  }
  return json;
}

// The artefact's birth certificate.
nlohmann::json certificate(Trainer& trainer, const Run& run, const Dataset& dataset, const fs::path& folder,
                           const Log& log, const nlohmann::json& diverged) {
  nlohmann::json json = birth_certificate(folder, "", trainer.model()->device());
  json.erase("command_line");
  json.update({{"identity", identity(run, dataset)},
               {"data", dataset.content_hash()},
               {"seed", run.training.seed},
               {"steps", trainer.steps_done()},
               {"seconds", log.seconds()},
               {"threads", at::get_num_threads()},
               {"device", run.training.device},
               {"training_loss", log.last_losses()},
               {"diverged", diverged}});
  json.update(measured_at_the_end(trainer, run, dataset));
  return json;
}

}  // namespace

Artefact trained(const Run& run, const Dataset& dataset, const fs::path& root,
                 const std::function<void(const Progress&)>& progress) {
  run.model.check();
  run.training.check();
  check_conversion(run);
  const bool divergence_is_a_result = run.training.divergence_is_a_result;
  const Artefact artefact{root / artefact_name(run, dataset), run};
  fs::create_directories(artefact.folder);
  const FileLock lock(artefact.folder / "lock");
  if (const nlohmann::json done = finished(artefact.folder, identity(run, dataset)); !done.is_null()) {
    if (done.contains("diverged") && !done["diverged"].is_null() && !divergence_is_a_result)
      throw NotFinite(done["diverged"].get<std::string>());
    return artefact;
  }

  LanguageModel source = nullptr;
  if (run.conversion) source = load_model(trained(run.conversion->source, dataset, root), run.training.device);
  Trainer trainer(run, dataset, source);
  write_whole(artefact.folder / "run.json", nlohmann::json(run).dump(1) + "\n");
  trainer.resume(artefact.folder / "checkpoint.pt");
  Log log(artefact.folder / "log.jsonl", trainer.steps_done());
  nlohmann::json diverged;
  try {
    train(trainer, run, artefact.folder, log, progress);
  } catch (const NotFinite& error) {
    if (!divergence_is_a_result) throw;
    diverged = error.what();
    trainer.save(artefact.folder / "checkpoint.pt");
  }
  const nlohmann::json done = certificate(trainer, run, dataset, artefact.folder, log, diverged);
  write_sealed(artefact.folder / "done.json", done);
  return artefact;
}

LanguageModel load_model(const Artefact& artefact) { return load_model(artefact, artefact.run.training.device); }

LanguageModel load_model(const Artefact& artefact, const std::string& device) {
  LanguageModel model(artefact.run.model, device_named(device), std::nullopt);
  load_weights(model, artefact.folder / "checkpoint.pt");
  model->eval();
  return model;
}

}  // namespace lethe
