#include <ATen/Context.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/commands/commands.hpp"
#include "experiments/commands/run_options.hpp"
#include "experiments/data/dataset.hpp"
#include "experiments/models/footprint.hpp"

namespace lethe {
namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;

void print_members(const char* title, const nlohmann::json& members) {
  std::printf("%s\n", title);
  for (const auto& [name, value] : members.items())
    std::printf("  %-22s %s\n", name.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
}

void describe(const RunOptions& options) {
  const Run run = options.run();
  const TrainingConfig& training = run.training;
  if (options.names_corpus()) check_corpus(training.corpus, training.tokenizer);  // a misspelt model's name is one
  nlohmann::json model = run.model;
  model.erase("mixer");
  print_members("model", model);
  for (const MixerConfig& mixer : run.model.mixer.all()) print_members("mixer", mixer);
  print_members("training", training);

  const ParameterCounts parameters = count_parameters(run.model);
  const int64_t micro_batch = training.micro_batch_tokens > 0 ? training.micro_batch_tokens : training.batch_tokens;
  const Footprint memory = footprint(run.model, micro_batch);
  const double flops = training_flops_per_token(run.model, training.context_length);
  const auto line = [](const char* name, double value, const char* unit) {
    std::printf("  %-22s %.4g %s\n", name, value, unit);
  };
  if (training.deterministic) at::globalContext().setDeterministicAlgorithms(true, false);  // as the training does
  std::printf("on compute capability 8.0 and above\n");
  for (const MixerConfig& mixer : run.model.mixer.all())
    std::printf("  %-22s %s\n", mixer.row().name.c_str(),
                mixer.row().on_hopper(run.model, mixer.options(), training.context_length).c_str());
  std::printf("cost\n");
  std::printf("  %-22s %lld\n", "parameters", static_cast<long long>(parameters.total));
  std::printf("  %-22s %lld\n", "non-embedding", static_cast<long long>(parameters.non_embedding));
  line("FLOPs a token", flops, "forward and backward");
  line("FLOPs of the training", flops * static_cast<double>(training.total_tokens), "");
  line("weights", static_cast<double>(memory.parameters) / kMebibyte, "MiB");
  line("gradients", static_cast<double>(memory.gradients) / kMebibyte, "MiB");
  line("optimizer", static_cast<double>(memory.optimizer) / kMebibyte, "MiB");
  line("activations", static_cast<double>(memory.activations) / kMebibyte, "MiB, an estimate");
  line("memory of a step", static_cast<double>(memory.total()) / kMebibyte, "MiB");
}

}  // namespace

void add_describe(CLI::App& app, const Place&) {
  auto* command =
      app.add_subcommand("describe", "Configuration, parameters, FLOPs and memory of a run, without training it");
  auto options = std::make_shared<RunOptions>();
  options->add_to(*command);
  command->footer([] {
    return RunOptions::settings() +
           "Takes the options of lethe train.\n"
           "Examples:\n"
           "  lethe describe --size 760m --architecture fox-pro --context 16384 --batch-tokens 524288 --set "
           "micro_batch_tokens=16384\n"
           "  lethe describe artefacts/models/NAME/run.json";
  });
  command->callback([options] { describe(*options); });
}

}  // namespace lethe
