#include <ATen/CPUGeneratorImpl.h>

#include <iostream>
#include <memory>
#include <stdexcept>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"

namespace lethe {
namespace {

struct GenerateOptions {
  std::string artefact, prompt, device = "cpu";
  int64_t tokens = 200, top = 0;
  double temperature = 0.8;
  uint64_t seed = 0;
};

/// Draws the next token from the model's distribution, sharpened by the temperature and cut to the `top` likeliest
/// tokens.
int64_t draw(torch::Tensor logits, const GenerateOptions& options, torch::Generator& generator) {
  if (options.temperature == 0) return logits.argmax().item<int64_t>();
  logits = logits.to(torch::kFloat64);
  logits = (logits - logits.max()) / options.temperature;  // at most 0, so that the smallest temperature stays finite
  if (options.top > 0 && options.top < logits.numel()) {
    const auto smallest = std::get<0>(logits.topk(options.top)).min();
    logits = logits.masked_fill(logits < smallest, -std::numeric_limits<double>::infinity());
  }
  return torch::multinomial(logits.softmax(0), 1, false, generator).item<int64_t>();
}

void generate(const GenerateOptions& options, const Place& place) {
  const Artefact artefact = find_artefact(place.models(), options.artefact);
  const TrainingConfig& training = artefact.run.training;
  const Dataset dataset(prepared_dataset(training.corpus, training.tokenizer, place.data()));
  expect_data(artefact, dataset);
  LanguageModel model = load_model(artefact, options.device);
  torch::NoGradGuard no_gradients;
  auto generator = at::detail::createCPUGenerator(options.seed);

  std::vector<int64_t> text{dataset.begin_token()};
  for (int64_t token : tokens_of(dataset, options.prompt)) text.push_back(token);
  std::cout << options.prompt << std::flush;
  for (int64_t i = 0; i < options.tokens; ++i) {
    // The whole window is computed anew for every token; it is at most as long as the training's context.
    const auto seen = std::min<int64_t>(static_cast<int64_t>(text.size()), training.context_length);
    const auto window = torch::tensor(std::vector<int64_t>(text.end() - seen, text.end())).unsqueeze(0);
    const int64_t next = draw(model->forward(window.to(model->device()))[0][-1].cpu(), options, generator);
    if (next == dataset.begin_token()) break;  // the document has ended
    text.push_back(next);
    std::cout << dataset.decode({next}) << std::flush;
  }
  std::cout << '\n';
}

}  // namespace

void add_generate(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("generate", "Let a trained model continue a text");
  auto options = std::make_shared<GenerateOptions>();
  command->add_option("artefact", options->artefact, "Folder, name, or the beginning of a name (lethe list shows them)")
      ->required();
  command->add_option("--prompt", options->prompt, "The text to continue; none: a document from its beginning");
  command->add_option("--tokens", options->tokens, "Tokens to write at most")
      ->check(number_between(1))
      ->capture_default_str();
  command
      ->add_option("--temperature", options->temperature,
                   "0: always the likeliest token; 1: the model's own distribution")
      ->check(number_between(0))
      ->capture_default_str();
  command->add_option("--top", options->top, "Draw among this many likeliest tokens; 0: all")
      ->check(number_between(0))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the draws")->capture_default_str();
  command->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer("Example:\n  lethe generate 3f2a --prompt 'In the beginning' --tokens 300");
  command->callback([options, &place] { generate(*options, place); });
}

}  // namespace lethe
