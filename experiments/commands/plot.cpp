#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "experiments/commands/commands.hpp"
#include "experiments/data/run_program.hpp"

namespace lethe {
namespace {

struct PlotOptions {
  std::vector<std::string> models;
  std::string output, tensorboard;
};

void plot(const PlotOptions& options, const Place& place) {
  std::vector<std::string> call{LETHE_PYTHON, std::string(LETHE_ROOT) + "/tools/plot.py",
                                "--root=" + place.root.string()};
  if (!options.output.empty()) call.push_back("--output=" + options.output);
  if (!options.tensorboard.empty()) call.push_back("--tensorboard=" + options.tensorboard);
  call.push_back("--");
  call.insert(call.end(), options.models.begin(), options.models.end());
  std::cout << run_program(call);
}

}  // namespace

void add_plot(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("plot", "Loss curves of models as a picture, or their logs for TensorBoard");
  auto options = std::make_shared<PlotOptions>();
  command->add_option("models", options->models,
                      "Folders, names, or the beginnings of names (lethe list models shows them); none: all");
  command->add_option("--output", options->output, "The picture: a file that ends with .svg, .png or .pdf")
      ->default_str("losses.svg");
  command->add_option("--tensorboard", options->tensorboard,
                      "Write event files for TensorBoard to this folder, and no picture without --output");
  command->footer(
      "Examples:\n"
      "  lethe plot\n"
      "  lethe plot 3f2a 77ab --output both.svg\n"
      "  lethe plot --tensorboard runs");
  command->callback([options, &place] { plot(*options, place); });
}

}  // namespace lethe
