#include <cstdio>
#include <memory>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/models/language_model.hpp"
#include "experiments/papers/registry.hpp"

namespace lethe {
namespace {

void list(const std::string& scale, const Place& place) {
  std::printf("claims, with their cost at scale %s\n", scale.c_str());
  for (const Experiment& experiment : experiments())
    std::printf("  %s\n    %s\n    %s\n", experiment.name().c_str(), experiment.title.c_str(),
                cost(place.root, experiment, scale).c_str());

  std::printf("architectures\n");
  for (const char* name : {"fox-pro", "fox-llama", "transformer-pro", "transformer-llama", "local", "additive", "gated",
                           "delta", "decay", "gated_linear", "gated_delta"})
    std::printf("  %s\n", name);

  std::printf("sizes, as fox-pro: parameters in total, without the embedding\n");
  for (const char* size : {"125m", "360m", "760m"}) {
    ModelConfig config = named_architecture("fox-pro");
    set_size(config, size);
    const ParameterCounts parameters = count_parameters(config);
    std::printf("  %s  %lld layers of width %lld, %lld, %lld\n", size, static_cast<long long>(config.layers),
                static_cast<long long>(config.width), static_cast<long long>(parameters.total),
                static_cast<long long>(parameters.non_embedding));
  }

  std::printf("trained models\n");
  for (const Artefact& artefact : finished_artefacts(place.models()))
    std::printf("  %s  %s, %lld tokens of %s, seed %llu\n", artefact.folder.filename().c_str(),
                artefact.run.label.c_str(), static_cast<long long>(artefact.run.training.total_tokens),
                artefact.run.training.corpus.c_str(), static_cast<unsigned long long>(artefact.run.training.seed));
}

}  // namespace

void add_list(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("list", "Claims and what they cost, architectures, sizes, trained models");
  auto scale = std::make_shared<std::string>("quick");
  command->add_option("--scale", *scale, "quick (two cores), gpu (one GPU, a day) or paper (the paper's own)")
      ->capture_default_str();
  command->callback([scale, &place] { list(*scale, place); });
}

}  // namespace lethe
