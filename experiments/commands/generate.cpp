#include <iostream>
#include <memory>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/continuation.hpp"
#include "experiments/commands/model_data.hpp"

namespace lethe {
namespace {

struct GenerateOptions {
  std::string artefact, prompt, device = "cpu";
  Drawing drawing;
};

void generate(const GenerateOptions& options, const Place& place) {
  const Artefact artefact = find_artefact(place.models(), options.artefact);
  const Dataset dataset = dataset_of(artefact, place);
  LanguageModel model = load_model(artefact, options.device);
  std::cout << options.prompt << std::flush;
  continue_text(model, dataset, artefact.run.training.context_length, options.prompt, options.drawing,
                [](const std::string& bytes) { return static_cast<bool>(std::cout << bytes << std::flush); });
  std::cout << '\n';
}

}  // namespace

void add_generate(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("generate", "Let a trained model continue a text");
  auto options = std::make_shared<GenerateOptions>();
  command->add_option("artefact", options->artefact, "Folder, name, or the beginning of a name (lethe list shows them)")
      ->required();
  command->add_option("--prompt", options->prompt, "The text to continue; none: a document from its beginning");
  command->add_option("--tokens", options->drawing.tokens, "Tokens to write at most")
      ->check(number_between(1))
      ->check(held_by<int64_t>())
      ->capture_default_str();
  command
      ->add_option("--temperature", options->drawing.temperature,
                   "0: always the likeliest token; 1: the model's own distribution")
      ->check(number_between(0))
      ->capture_default_str();
  command->add_option("--top", options->drawing.top, "Draw among this many likeliest tokens; 0: all")
      ->check(number_between(0))
      ->check(held_by<int64_t>())
      ->capture_default_str();
  command->add_option("--seed", options->drawing.seed, "Seed of the draws")
      ->check(number_between(0))
      ->check(held_by<uint64_t>())
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer("Example:\n  lethe generate 3f2a --prompt 'In the beginning' --tokens 300");
  command->callback([options, &place] { generate(*options, place); });
}

}  // namespace lethe
