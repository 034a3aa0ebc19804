#include "experiments/commands/training_words.hpp"

#include <ATen/Parallel.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>

#include "experiments/commands/continuation.hpp"
#include "experiments/commands/text_table.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"

namespace lethe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kTimedSteps = 3;  // the first is slower than the rest
constexpr std::chrono::seconds kLongestSample{10};

void print_line(const char* title, const std::string& text) { std::fprintf(stderr, "%-12s%s\n", title, text.c_str()); }

std::string mixers_of(const ModelConfig& model) {
  std::string names;
  for (const MixerConfig& mixer : model.mixer.all()) names += (names.empty() ? "" : " and ") + mixer.row().name;
  return names;
}

/// A training or validation loss, with bits per byte where the split has bytes.
std::string words_of_loss(double loss, const Dataset& dataset, const std::string& split) {
  return fixed(loss, 4) + " (" + fixed(bits_per_byte(loss, dataset, split), 3) + " bits per byte)";
}

double figure_in(const json& object, const char* key) {
  return object.contains(key) && object[key].is_number() ? object[key].get<double>()
                                                         : std::numeric_limits<double>::quiet_NaN();
}

std::string sample_of(const Artefact& artefact, const Dataset& dataset, int64_t tokens) {
  LanguageModel model = load_model(artefact);
  std::string text;
  const auto start = std::chrono::steady_clock::now();
  continue_text(model, dataset, artefact.run.training.context_length, "", {.tokens = tokens},
                [&](const std::string& bytes) {
                  text += bytes;
                  return std::chrono::steady_clock::now() - start < kLongestSample;
                });
  return as_utf8(text);
}

}  // namespace

double bits_per_byte(double loss, const Dataset& dataset, const std::string& split) {
  const auto bytes = static_cast<double>(dataset.bytes(split));
  if (bytes == 0) return std::numeric_limits<double>::quiet_NaN();
  return loss * static_cast<double>(dataset.tokens(split)) / bytes / std::numbers::ln2;
}

void print_opening(const Run& run, const Dataset& dataset, const fs::path& folder, const fs::path& source,
                   const TrainingLimit& limit) {
  const TrainingConfig& training = run.training;
  const auto tokens = static_cast<double>(training.total_tokens);
  const auto count = [&](const char* split) { return short_count(static_cast<double>(dataset.tokens(split))); };
  print_line("corpus", dataset.name() + " (" + training.corpus + ") as " + dataset.tokenizer() + ": " + count("train") +
                           " tokens to train on, " + count("valid") + " to validate, " + count("test") + " to test");
  print_line("model", mixers_of(run.model) + ", " + std::to_string(run.model.layers) + " layers of width " +
                          std::to_string(run.model.width) + ", " +
                          short_count(static_cast<double>(count_parameters(run.model).total)) + " parameters" +
                          (source.empty() ? "" : ", from " + source.string()));
  print_line("training",
             short_count(tokens) + " tokens, " + fixed(tokens / static_cast<double>(dataset.tokens("train")), 2) +
                 " epochs: " + std::to_string(training.steps()) + " steps of " + std::to_string(training.batch_tokens) +
                 " tokens in sequences of " + std::to_string(training.context_length) + ", on " + training.device +
                 " with " + std::to_string(at::get_num_threads()) + " threads");
  print_line("limit", short_count(limit.tokens_per_second) +
                          " tokens/s, were all of its FLOPs one large matrix product on this machine" +
                          (limit.prunes ? " and no pair pruned" : ""));
  print_line("folder", folder.string());
  print_line("checkpoints", training.checkpoint_tokens > 0
                                ? "every " + short_count(static_cast<double>(training.checkpoint_tokens)) + " tokens"
                                : "at the end");
}

void TrainingLines::show(const Progress& progress) {
  if (!progress.notice.empty()) return line_.show(progress);
  if (!began_ && progress.resumed_at > 0)
    line_.keep("resumed     at step " + std::to_string(progress.resumed_at) + " of " + std::to_string(progress.steps));
  began_ = true;
  if (!timed_ && (progress.step - progress.resumed_at >= kTimedSteps || progress.step == progress.steps)) {
    timed_ = true;
    line_.keep("time        about " + duration(progress.seconds_left) + ", " + speed_of(progress));
  }
  if (std::isfinite(progress.validation_loss)) {
    char text[240];
    std::snprintf(text, sizeof text, "step %6lld of %lld   training %.4f   validation %s   %s   %s left",
                  static_cast<long long>(progress.step), static_cast<long long>(progress.steps), progress.loss,
                  words_of_loss(progress.validation_loss, dataset_, "valid").c_str(), speed_of(progress).c_str(),
                  duration(progress.seconds_left).c_str());
    line_.keep(text);
  }
  line_.show(progress);
}

void print_end(const Artefact& artefact, const Dataset& dataset, const Place& place, int64_t sample) {
  const json done = read_sealed(artefact.folder / "done.json");
  const double validation = figure_in(done, "validation_loss");
  std::cout << "validation loss " +
                   (std::isfinite(validation) ? words_of_loss(validation, dataset, "valid")
                                              : "none: the valid split is shorter than a sequence") +
                   ", training loss " + fixed(figure_in(done, "training_loss"), 4) + ", " +
                   duration(figure_in(done, "seconds")) + "\n";
  if (done.contains("diverged") && done["diverged"].is_string())
    std::cout << "diverged: " + done["diverged"].get<std::string>() + "\n";
  else if (sample > 0) std::cout << "sample:\n" + sample_of(artefact, dataset, sample) + "\n";
  const std::string name = artefact.folder.filename().string().substr(0, 8);
  const bool is_here = artefact.folder.parent_path() == place.models() && place.root == fs::current_path();
  const std::string model = is_here ? name : artefact.folder.string();
  std::cout << "next:\n  lethe evaluate " + model + "\n  lethe generate " + model +
                   " --prompt 'The '\n  lethe train --from " + model + " --tokens " +
                   std::to_string(2 * artefact.run.training.total_tokens) + "\n";
  std::cout << artefact.folder.string() << '\n';
}

}  // namespace lethe
