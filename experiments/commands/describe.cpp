#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "experiments/commands/commands.hpp"
#include "experiments/commands/run_options.hpp"
#include "experiments/models/footprint.hpp"
#include "optimized/torch/implementations.hpp"

namespace lethe {
namespace {

constexpr double kMebibyte = 1024.0 * 1024.0;

void print_members(const char* title, const nlohmann::json& members) {
  std::printf("%s\n", title);
  for (const auto& [name, value] : members.items())
    std::printf("  %-22s %s\n", name.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
}

// What runs the model's mixer on an H100 or H200.
std::string mixer_on_hopper(const ModelConfig& model, int64_t context_length) {
  if (model.mixer == Mixer::kLocal) return "portable: a few PyTorch calls a sequence";
  Dtype dtype = Dtype::kFloat32;
  for (const Dtype candidate : {Dtype::kFloat64, Dtype::kBFloat16, Dtype::kFloat16})
    if (dtype_name(candidate) == model.compute_dtype) dtype = candidate;
  const Shape shape{1, context_length, context_length, model.heads, model.heads, model.head_dim(), model.head_dim()};
  const Call call{.shape = shape, .dtype = dtype, .device = at::kCUDA, .compute_capability = 90};
  if (model.has_state())
    return implementation_name(matrix_state_implementations(), call) + ", float64: a few PyTorch calls a token";
  return implementation_name(attention_implementations(), call);
}

void describe(const RunOptions& options) {
  const Run run = options.run();
  const TrainingConfig& training = run.training;
  print_members("model", run.model);
  print_members("training", training);

  const ParameterCounts parameters = count_parameters(run.model);
  const int64_t micro_batch = training.micro_batch_tokens > 0 ? training.micro_batch_tokens : training.batch_tokens;
  const Footprint memory = footprint(run.model, micro_batch);
  const double flops = training_flops_per_token(run.model, training.context_length);
  const auto line = [](const char* name, double value, const char* unit) {
    std::printf("  %-22s %.4g %s\n", name, value, unit);
  };
  std::printf("on compute capability 9.0\n  %-22s %s\n", run.model.has_state() ? "matrix state" : "attention",
              mixer_on_hopper(run.model, training.context_length).c_str());
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
  command->footer(
      "Takes the options of lethe train.\n"
      "Examples:\n"
      "  lethe describe --size 760m --architecture fox-pro --context 16384 --batch-tokens 524288 --set "
      "micro_batch_tokens=16384\n"
      "  lethe describe artefacts/models/NAME/run.json");
  command->callback([options] { describe(*options); });
}

}  // namespace lethe
