#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/commands/artefacts.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/models/safetensors.hpp"

namespace lethe {
namespace {

struct ExportOptions {
  std::string artefact, output, dtype = "float32";
};

void export_weights(const ExportOptions& options, const Place& place) {
  const OutputFile output(options.output);  // refused before the work
  const Artefact artefact = find_artefact(place.models(), options.artefact);
  LanguageModel model = load_model(artefact, "cpu");
  const torch::Dtype dtype = options.dtype == "bfloat16" ? torch::kBFloat16 : torch::kFloat32;
  Safetensors file{.tensors = {},
                   .metadata = {{"format", "pt"},
                                {"model", nlohmann::json(artefact.run.model).dump()},
                                {"artefact", artefact.folder.filename().string()}}};
  for (const auto& parameter : model->named_parameters())
    file.tensors[parameter.key()] = parameter.value().detach().to(dtype);
  for (const auto& buffer : model->named_buffers()) file.tensors[buffer.key()] = buffer.value().to(dtype);
  write_safetensors(output, file);
  std::cout << options.output << ": " << file.tensors.size() << " tensors\n";
}

}  // namespace

void add_export(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand(
      "export", "Write a trained model's weights as safetensors, named as the published checkpoints name them");
  auto options = std::make_shared<ExportOptions>();
  command->add_option("artefact", options->artefact, "Folder, name, or the beginning of a name (lethe list shows them)")
      ->required();
  command->add_option("--output", options->output, "The file to write")->required();
  command->add_option("--dtype", options->dtype, "float32 or bfloat16")
      ->check(one_of({"float32", "bfloat16"}))
      ->capture_default_str();
  command->footer("Example:\n  lethe export 3f2a --output model.safetensors");
  command->callback([options, &place] { export_weights(*options, place); });
}

}  // namespace lethe
