#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/models_table.hpp"
#include "experiments/evaluation/evaluation.hpp"
#include "experiments/models/language_model.hpp"

namespace lethe {
namespace {

struct ListOptions {
  std::vector<std::string> parts;
  std::string scale = "quick";
};

void list_claims(const ListOptions& options, const Place& place) {
  std::printf("claims, with their cost at scale %s\n", options.scale.c_str());
  for (const Experiment& experiment : experiments()) {
    std::string about;
    try {
      about = claim_title(place.suite(), experiment) + "\n    " + cost(place.suite(), experiment, options.scale);
    } catch (const std::exception& error) {  // one damaged config.toml hides no other claim
      about = error.what();
      std::ranges::replace(about, '\n', ' ');
    }
    std::printf("  %s\n    %s\n", experiment.name().c_str(), about.c_str());
  }
}

void list_evaluations(const ListOptions&, const Place&) {
  std::printf("evaluations\n");
  for (const Evaluation& evaluation : evaluations())
    std::printf("  %s  %s\n", evaluation.name.c_str(), evaluation.title.c_str());
}

void list_architectures(const ListOptions&, const Place&) {
  std::printf("architectures\n");
  for (const Architecture& architecture : named_architectures()) std::printf("  %s\n", architecture.name.c_str());
}

void list_sizes(const ListOptions&, const Place&) {
  std::printf("sizes, as fox-pro: parameters in total, without the embedding\n");
  for (const char* size : {"125m", "360m", "760m"}) {
    ModelConfig config = named_architecture("fox-pro");
    set_size(config, size);
    const ParameterCounts parameters = count_parameters(config);
    std::printf("  %s  %lld layers of width %lld, %lld, %lld\n", size, static_cast<long long>(config.layers),
                static_cast<long long>(config.width), static_cast<long long>(parameters.total),
                static_cast<long long>(parameters.non_embedding));
  }
}

void list_models(const ListOptions&, const Place& place) {
  const std::string table = models_table(place.models());
  std::printf("models below %s%s\n%s", place.models().c_str(), table.empty() ? ": none yet (lethe train)" : "",
              table.c_str());
}

struct Part {
  const char* name;
  void (*list)(const ListOptions&, const Place&);
};
constexpr Part kParts[] = {{"claims", list_claims},
                           {"evaluations", list_evaluations},
                           {"architectures", list_architectures},
                           {"sizes", list_sizes},
                           {"models", list_models}};

}  // namespace

void add_list(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand(
      "list", "Models with their state and loss; claims and what they cost; evaluations, architectures, sizes");
  auto options = std::make_shared<ListOptions>();
  command->add_option("parts", options->parts, listed(kParts, &Part::name) + "; none: all")
      ->check(one_of(kParts, &Part::name));
  add_scale(*command, options->scale);
  command->footer("Example:\n  lethe list models");
  command->callback([options, &place] {
    for (const Part& part : kParts)
      if (options->parts.empty() || std::ranges::find(options->parts, part.name) != options->parts.end())
        part.list(*options, place);
  });
}

}  // namespace lethe
