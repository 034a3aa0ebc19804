#include <cstdio>
#include <memory>
#include <stdexcept>

#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/evaluation/evaluation.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {
namespace {

void list(const std::string& scale, const Place& place) {
  std::printf("claims, with their cost at scale %s\n", scale.c_str());
  for (const Experiment& experiment : experiments())
    std::printf("  %s\n    %s\n    %s\n", experiment.name().c_str(), claim_title(place.root, experiment).c_str(),
                cost(place.root, experiment, scale).c_str());

  std::printf("evaluations\n");
  for (const Evaluation& evaluation : evaluations())
    std::printf("  %s  %s\n", evaluation.name.c_str(), evaluation.title.c_str());

  std::printf("architectures\n");
  for (const Architecture& architecture : architectures()) std::printf("  %s\n", architecture.name.c_str());

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
  for (const auto& folder : finished_artefacts(place.models())) {
    const std::string name = folder.filename();
    try {
      const Run run = read_artefact(folder).run;
      std::printf("  %s  %s, %lld tokens of %s, seed %llu\n", name.c_str(), run.label.c_str(),
                  static_cast<long long>(run.training.total_tokens), run.training.corpus.c_str(),
                  static_cast<unsigned long long>(run.training.seed));
    } catch (const std::invalid_argument& error) {
      std::printf("  %s  %s\n", name.c_str(), error.what());
    }
  }
}

}  // namespace

void add_list(CLI::App& app, const Place& place) {
  auto* command =
      app.add_subcommand("list", "Claims and what they cost, evaluations, architectures, sizes, trained models");
  auto scale = std::make_shared<std::string>("quick");
  command->add_option("--scale", *scale, "quick (two cores), gpu (one GPU, a day) or paper (the paper's own)")
      ->capture_default_str();
  command->callback([scale, &place] { list(*scale, place); });
}

}  // namespace lethe
