#include <cstdio>
#include <memory>

#include "experiments/claims/job.hpp"
#include "experiments/claims/registry.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/progress_line.hpp"

namespace lethe {
namespace {

struct SuiteOptions {
  std::vector<std::string> experiments;
  std::string scale = "quick", results;
};

std::string described(const JobProgress& progress) {
  char text[200];
  std::snprintf(text, sizeof text, "%3.0f %%, %s left: %s", 100 * progress.share_done,
                duration(progress.seconds_left).c_str(), progress.what.c_str());
  std::string line = text;
  if (progress.training.steps > 0) line += ", " + described(progress.training);
  return line;
}

void run(const SuiteOptions& options, const Place& place) {
  const auto selected = select_experiments(options.experiments);
  Context context;
  context.scale = options.scale;
  context.root = place.suite();
  context.artefacts = place.root / "artefacts";
  context.results = results_folder(
      options.results.empty() ? place.results() : std::filesystem::absolute(options.results), options.scale);
  context.threads = place.threads;
  context.command_line = place.command_line;
  std::filesystem::current_path(place.root);  // a corpus in config.toml is a path below it
  {
    ProgressLine line;
    context.progress = [&](const JobProgress& progress) {
      if (progress.training.notice.empty()) line.show(described(progress));
      else line.show(progress.training);
    };
    run_experiments(selected, context);
  }
  std::printf("%s\n", context.results.c_str());
}

}  // namespace

void add_scale(CLI::App& command, std::string& scale) {
  command
      .add_option("--scale", scale,
                  "smoke (a minute: does it run at all), quick (two cores, minutes), gpu (one GPU, a day) or paper "
                  "(the papers' own)")
      ->check(one_of({"smoke", "quick", "gpu", "paper"}))
      ->capture_default_str();
}

void add_run(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("run", "Train what claims need, and measure them");
  auto options = std::make_shared<SuiteOptions>();
  command->add_option("experiments", options->experiments,
                      "paper/claim, paper or claim; none: all (lethe list shows them)");
  add_scale(*command, options->scale);
  command->add_option("--results", options->results, "The folder of results, one folder a machine below it")
      ->default_str("artefacts/results, which git ignores");
  command->footer(
      "A second call repeats nothing that is finished, and goes on where a first was stopped.\n"
      "Examples:\n"
      "  lethe run\n"
      "  lethe run adaptive_computation_pruning\n"
      "  lethe run ablations tolerance");
  command->callback([options, &place] { run(*options, place); });
}

}  // namespace lethe
