#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <stdexcept>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/evaluation/per_token_loss.hpp"

namespace lethe {
namespace {

struct EvaluateOptions {
  std::string artefact, split = "valid", corpus, csv, device = "cpu";
  int64_t length = 0, sequences = 64, window = 101;
};

void write_csv(const std::string& path, const PerTokenLoss& result, const std::vector<double>& smoothed) {
  const std::string beside = path + ".partial";
  std::ofstream file(beside);
  file.precision(9);
  file << "position,loss,standard_error,loss_smoothed,perplexity\n";
  for (size_t i = 0; i < result.loss.size(); ++i)
    file << i + 1 << ',' << result.loss[i] << ',' << result.standard_error[i] << ',' << smoothed[i] << ','
         << result.perplexity(static_cast<int64_t>(i) + 1) << '\n';
  file.close();
  if (!file) throw std::runtime_error("--csv: expected a file that can be written, found " + path);
  std::filesystem::rename(beside, path);
}

void evaluate(const EvaluateOptions& options, const Place& place) {
  const Artefact artefact = find_artefact(place.models(), options.artefact);
  const TrainingConfig& training = artefact.run.training;
  const Dataset dataset(
      prepared_dataset(options.corpus.empty() ? training.corpus : options.corpus, training.tokenizer, place.data()));
  const int64_t length = options.length > 0 ? options.length : 4 * training.context_length;
  if (dataset.sequence_count(options.split, length) == 0)
    throw std::invalid_argument("--length: expected at most " + std::to_string(dataset.tokens(options.split)) +
                                ", the tokens of " + options.split + ", found " + std::to_string(length));
  LanguageModel model = load_model(artefact, options.device);
  const PerTokenLoss result = per_token_loss(model, dataset, options.split, length, options.sequences);
  const auto smoothed = result.smoothed(options.window);
  if (!options.csv.empty()) write_csv(options.csv, result, smoothed);

  std::printf("%s on %s of %s: %lld sequences of %lld tokens, trained on %lld\n", artefact.folder.filename().c_str(),
              options.split.c_str(), dataset.name().c_str(), static_cast<long long>(result.sequences),
              static_cast<long long>(length), static_cast<long long>(training.context_length));
  std::printf("%10s  %12s  %12s  %12s  %12s\n", "position i", "L(i) / nats", "std. error", "smoothed", "P(i)");
  // Doubling positions show the curve's shape; the training length and the end are where it is compared.
  std::set<int64_t> positions{training.context_length, length};
  for (int64_t i = 1; i < length; i *= 2) positions.insert(i);
  for (int64_t i : positions)
    if (i <= length)
      std::printf("%10lld  %12.4f  %12.4f  %12.4f  %12.4f\n", static_cast<long long>(i), result.loss[i - 1],
                  result.standard_error[i - 1], smoothed[i - 1], result.perplexity(i));
}

}  // namespace

void add_evaluate(CLI::App& app, const Place& place) {
  auto* command =
      app.add_subcommand("evaluate", "Loss of a trained model position by position, L(i), and perplexity P(l)");
  auto options = std::make_shared<EvaluateOptions>();
  command->add_option("artefact", options->artefact, "Folder, name, or the beginning of a name (lethe list shows them)")
      ->required();
  command->add_option("--split", options->split, "train, valid or test")->capture_default_str();
  command->add_option("--corpus", options->corpus, "Another corpus than the one trained on");
  command->add_option("--length", options->length, "Tokens in a sequence; 0: four times the training length")
      ->check(number_between(0))
      ->capture_default_str();
  command->add_option("--sequences", options->sequences, "At most this many sequences")
      ->check(number_between(1))
      ->capture_default_str();
  command->add_option("--window", options->window, "Positions that the smoothed curve averages")
      ->check(number_between(1))
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--csv", options->csv, "Write every position to this file");
  command->footer(
      "Examples:\n"
      "  lethe evaluate 3f2a\n"
      "  lethe evaluate 3f2a --split test --length 4096 --sequences 100 --csv loss.csv");
  command->callback([options, &place] { evaluate(*options, place); });
}

}  // namespace lethe
