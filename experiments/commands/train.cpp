#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/deadline.hpp"
#include "experiments/commands/model_data.hpp"
#include "experiments/commands/rank_options.hpp"
#include "experiments/commands/run_options.hpp"
#include "experiments/commands/training_words.hpp"
#include "experiments/training/conversion.hpp"
#include "experiments/training/machine_limit.hpp"

namespace lethe {
namespace {

struct TrainOptions {
  RunOptions run;
  RankOptions ranks;
  std::string from;
  int64_t sample = 200;
  Deadline deadline;
};

/// The run that starts from a trained one: its configuration, and its weights as they are.
Run continued(const Artefact& source) {
  Run run = source.run;
  if (!run.label.empty() && !run.label.ends_with(", continued")) run.label += ", continued";
  run.conversion = std::make_shared<const Conversion>(Conversion{.source = source.run});
  return run;
}

/// A path of text as it is found from any folder; a name as it is.
std::string found_from_anywhere(const std::string& corpus) {
  const bool is_path = corpus != "bible" && corpus != "headers";
  return is_path ? std::filesystem::weakly_canonical(corpus).string() : corpus;
}

/// What a training starts from: a trained model and its run, or neither.
struct Start {
  std::optional<Artefact> source;
  std::optional<Run> run;
};

/// The data of a training, which the first rank prepares and the others find.
Dataset dataset_of(const TrainOptions& options, const Start& start, const TrainingConfig& asked, const Place& place,
                   World& world) {
  const auto read = [&] {
    return start.source && !options.run.names_corpus()
               ? dataset_of(*start.source, place)
               : Dataset(prepared_dataset(asked.corpus, asked.tokenizer, place.data()));
  };
  std::optional<Dataset> dataset;
  if (world.is_first()) dataset = read();
  world.from_first();
  return world.is_first() ? std::move(*dataset) : read();
}

Run run_of(const TrainOptions& options, Start& start, const Dataset& dataset) {
  if (start.source && dataset.content_hash() != content_of(*start.source)) {
    Conversion conversion = *start.run->conversion;
    conversion.source_data = content_of(*start.source);
    start.run->conversion = std::make_shared<const Conversion>(conversion);
  }
  Run run = options.run.run(&dataset, start.run ? &*start.run : nullptr);
  run.training.corpus = found_from_anywhere(run.training.corpus);
  if (run.model.vocabulary != dataset.vocabulary())
    throw std::invalid_argument("vocabulary: expected " + std::to_string(dataset.vocabulary()) + ", that of " +
                                dataset.name() + ", found " + std::to_string(run.model.vocabulary));
  check_conversion(run);
  return run;
}

void train_and_tell(const TrainOptions& options, const Run& run, const Dataset& dataset,
                    const std::filesystem::path& models, const Start& start, const Place& place, World& world) {
  const auto folder = models / artefact_name(run, dataset);
  bool trained_now = false;
  TrainingLimit limit;
  const bool is_found = is_finished(run, dataset, models);
  if (!is_found) {
    limit = training_limit(run, world.size());
    print_opening(run, dataset, folder, start.source ? start.source->folder : std::filesystem::path(), limit);
  }
  Artefact artefact;
  {
    TrainingLines lines(dataset, options.deadline);
    const auto tell = [&](Progress progress) {
      trained_now = trained_now || progress.notice.empty();
      progress.limit = limit;
      lines.show(progress);
    };
    artefact = trained(run, dataset, models, tell, world);
  }
  if (is_found) std::cerr << "found       trained before: nothing is left to do\n";
  print_end(artefact, dataset, place, trained_now ? options.sample : 0);
}

void train(const TrainOptions& options, const Place& place) {
  Start start;
  if (!options.from.empty()) {
    start.source = find_artefact(place.models(), options.from);
    start.run = continued(*start.source);
  }
  TrainingConfig asked = options.run.run(nullptr, start.run ? &*start.run : nullptr).training;
  options.ranks.run(asked.device, [&](World& world) {
    const Dataset dataset = dataset_of(options, start, asked, place, world);
    Run run = run_of(options, start, dataset);
    run.training.device = asked.device;
    const auto models = start.source ? models_with(*start.source, content_of(*start.source)) : place.models();
    if (world.is_first()) train_and_tell(options, run, dataset, models, start, place, world);
    else trained(run, dataset, models, {}, world);
  });
}

}  // namespace

void add_train(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("train", "Train one model, or find it where it is trained already");
  auto options = std::make_shared<TrainOptions>();
  options->run.add_to(*command);
  options->ranks.add_to(*command);
  command->add_option("--from", options->from,
                      "A trained model to start from: the result is a new model of the same configuration, on its data "
                      "unless a corpus is given");
  command->add_option("--sample", options->sample, "Tokens that the trained model writes at the end; 0: none")
      ->check(number_between(0))
      ->capture_default_str();
  options->deadline.add_to(*command);
  command->footer([] {
    return RunOptions::settings() +
           "A model is named by its configuration, data and seed: the same call finds it again, a call that was "
           "stopped "
           "goes on at its\n"
           "last checkpoint. The last line printed is the artefact's folder.\n"
           "Examples:\n"
           "  lethe train input.txt\n"
           "  lethe train books --tokenizer gpt2 --tokens 20000000\n"
           "  lethe train --from 3f2a --tokens 4000000\n"
           "  lethe train --tokens 100000000 --until 3600\n"
           "  lethe train --architecture transformer-llama --layers 2 --width 64 --heads 2 --corpus headers\n"
           "  lethe train --architecture decay --set state_size=32 --set rope=false\n"
           "  lethe train --set kv_shift=false --set output_norm=false --set log_pruning_tolerance=-10\n"
           "  lethe train artefacts/models/NAME/run.json --seed 2\n"
           "  lethe train --size 125m --gpus 8 --set zero=true\n"
           "  torchrun --nnodes 4 --nproc-per-node 8 --no-python lethe train --size 760m --device cuda";
  });
  command->callback([options, &place] { train(*options, place); });
}

}  // namespace lethe
