#include <iostream>
#include <memory>
#include <stdexcept>

#include "experiments/commands/commands.hpp"
#include "experiments/commands/progress_line.hpp"
#include "experiments/commands/run_options.hpp"
#include "experiments/data/dataset.hpp"

namespace lethe {
namespace {

void train(const RunOptions& options, const Place& place) {
  const Run run = options.run();
  const Dataset dataset(prepared_dataset(run.training.corpus, run.training.tokenizer, place.data()));
  if (run.model.vocabulary != dataset.vocabulary())
    throw std::invalid_argument("vocabulary: expected " + std::to_string(dataset.vocabulary()) + ", that of " +
                                dataset.name() + ", found " + std::to_string(run.model.vocabulary));
  Progress last;
  Artefact artefact;
  {
    ProgressLine line;
    artefact = trained(run, dataset, place.models(), [&](const Progress& progress) {
      if (progress.notice.empty()) last = progress;
      line.show(progress);
    });
  }
  if (last.steps > 0) std::cout << "loss " << last.loss << " after " << last.step << " steps\n";
  std::cout << artefact.folder.string() << '\n';
}

}  // namespace

void add_train(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("train", "Train one model, or find it where it is trained already");
  auto options = std::make_shared<RunOptions>();
  options->add_to(*command);
  command->footer([] {
    return RunOptions::settings() +
           "A model is named by its configuration, data and seed: the same call finds it again, a call that was "
           "stopped "
           "goes on at its\n"
           "last checkpoint. The last line printed is the artefact's folder.\n"
           "Examples:\n"
           "  lethe train --tokens 2000000 --seed 1\n"
           "  lethe train --architecture transformer-llama --layers 2 --width 64 --heads 2 --corpus headers\n"
           "  lethe train --architecture decay --set state_size=32 --set rope=false\n"
           "  lethe train --set kv_shift=false --set output_norm=false --set log_pruning_tolerance=-10\n"
           "  lethe train artefacts/models/NAME/run.json --seed 2";
  });
  command->callback([options, &place] { train(*options, place); });
}

}  // namespace lethe
