#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "experiments/commands/bench_model.hpp"
#include "experiments/commands/bench_step.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/folders.hpp"
#include "experiments/commands/rank_options.hpp"
#include "experiments/commands/run_options.hpp"
#include "experiments/commands/step_profile.hpp"
#include "experiments/evaluation/predictor.hpp"
#include "experiments/files.hpp"
#include "experiments/models/safetensors.hpp"
#include "experiments/training/machine_limit.hpp"
#include "optimized/torch/products.hpp"

namespace lethe {
namespace {

using torch::Tensor;

struct BenchOptions {
  RunOptions run;
  RankOptions ranks;
  StepOptions step;
  double seconds = 10;
  std::string json, trace;
  bool serve = false, profile = false, prompt = false;
};

nlohmann::json measured(Step& step, double seconds) {
  constexpr int64_t kTrial = 2;
  step.take(3);
  const double trial = step.timed(kTrial) / kTrial;
  const int64_t steps = step.world().from_first(std::max<int64_t>(1, std::llround(seconds / trial)));
  const double elapsed = step.timed(steps), tokens = static_cast<double>(step.tokens() * steps);
  return {{"steps", steps},
          {"tokens_per_second", tokens / elapsed},
          {"microseconds_per_token", elapsed / tokens * 1e6},
          {"milliseconds_per_step", elapsed / static_cast<double>(steps) * 1e3}};
}

void print(const Run& run, const nlohmann::json& result) {
  std::printf("%-22s %.0f\n%-22s %.4f\n%-22s %.3f\n", "tokens/s", result.at("tokens_per_second").get<double>(),
              "us a token", result.at("microseconds_per_token").get<double>(), "ms a step",
              result.at("milliseconds_per_step").get<double>());
  const double flops = training_flops_per_token(run.model, run.training.context_length);
  const double rate = flops * result.at("tokens_per_second").get<double>();
  std::printf("%-22s %.3g\n%-22s %.1f\n", "TFLOP/s", rate / 1e12, "% of a large product",
              100 * rate / result.at("product_flops_per_second").get<double>());
  if (const auto bytes = result.find("peak_bytes"); bytes != result.end())
    std::printf("%-22s %.2f\n", "GiB at most", bytes->get<double>() / (1 << 30));
}

// The products that were measured, and what it gained.
nlohmann::json print_products(bool each) {
  const std::vector<MeasuredProduct> products = measured_products();
  nlohmann::json json = nlohmann::json::array();
  double by_default = 0, now = 0, seconds = 0;
  for (const MeasuredProduct& product : products) {
    const auto calls = static_cast<double>(product.calls);
    by_default += calls * product.default_time;
    now += calls * (product.changed ? product.best_time : product.default_time);
    seconds += product.seconds;
    json.push_back({{"product", product.name},
                    {"calls", product.calls},
                    {"candidates", product.candidates},
                    {"default_microseconds", product.default_time},
                    {"best_microseconds", product.best_time},
                    {"changed", product.changed},
                    {"seconds", product.seconds}});
  }
  if (products.empty()) return json;
  std::printf("%-22s %lld of %zu chosen by measurement, %.1f %% less of their time; measured in %.2f s\n", "GEMMs",
              static_cast<long long>(std::ranges::count_if(products, &MeasuredProduct::changed)), products.size(),
              by_default > 0 ? 100 * (1 - now / by_default) : 0, seconds);
  if (!each) return json;
  std::printf("  %-46s %8s %10s %10s %7s\n", "product", "calls", "default us", "best us", "gain");
  for (const MeasuredProduct& product : products)
    std::printf("  %-46s %8lld %10.1f %10.1f %5.1f %% %s\n", product.name.c_str(),
                static_cast<long long>(product.calls), product.default_time, product.best_time,
                product.default_time > 0 ? 100 * (1 - product.best_time / product.default_time) : 0,
                product.changed ? "" : "kept");
  return json;
}

// Microseconds a token by operator, over a few steps.
nlohmann::json profiled(Step& step) {
  constexpr int64_t kSteps = 3;
  StepProfile profile(step.model()->device());
  step.take(kSteps);
  const double tokens = static_cast<double>(kSteps * step.tokens());
  std::vector<std::pair<double, std::string>> rows;
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, entry] : profile.entries()) {
    rows.emplace_back(entry.microseconds / tokens, name);
    json[name] = {{"microseconds_per_token", rows.back().first}, {"calls_per_step", entry.calls / kSteps}};
  }
  std::ranges::sort(rows, std::greater());
  double all = 0;
  for (const auto& [microseconds, name] : rows) all += microseconds;
  std::printf("us a token by operator (of %.4f in all)\n", all);
  for (const auto& [microseconds, name] : rows)
    if (microseconds > 0.002 * all)
      std::printf("  %8.4f  %4.1f %%  %s\n", microseconds, 100 * microseconds / all, name.c_str());
  return json;
}

// A trace of a few steps and of what lies between them, for chrome://tracing or Perfetto.
void write_trace(Step& step, const OutputFile& file) {
  constexpr int64_t kSteps = 4;
  using namespace torch::autograd::profiler;
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (step.model()->device().is_cuda()) activities.insert(ActivityType::CUDA);
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
  step.take(kSteps);
  const ScratchFolder scratch;
  const std::string draft = scratch.path() / "trace.json";
  disableProfiler()->save(draft);
  file.commit({read_whole(draft)});
}

// Reading one prompt of `context` random tokens as an evaluation does: loss and hit of each. On a GPU its memory too.
nlohmann::json measured_prompt(const Run& run, const BenchOptions& options) {
  LanguageModel model(run.model, device_named(run.training.device), run.training.seed);
  if (!options.step.weights.empty()) read_weights(model, read_safetensors(options.step.weights), options.step.weights);
  set_gates(model, options.step.gates);
  const InEvaluation in_evaluation(model);
  const Tensor text = torch::randint(run.model.vocabulary, {1, run.training.context_length + 1}, torch::kInt64);
  const Predictor read = predictor_of(model);
  const auto once = [&, n = run.training.context_length] { read(text.narrow(1, 0, n), text.narrow(1, 1, n)); };
  const torch::Device device = model->device();
  nlohmann::json result;
  const int64_t weights = device.is_cuda() ? allocated_bytes(device, false) : 0;
  once();
  if (device.is_cuda()) {
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
    once();
    result["bytes_beyond_the_weights"] = allocated_bytes(device, true) - weights;
  }
  int64_t count = 0;
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  for (; count == 0 || seconds() < options.seconds; ++count) once();  // each ends on the CPU
  result["prompts"] = count;
  result["milliseconds"] = seconds() / static_cast<double>(count) * 1e3;
  return result;
}

void print_prompt(const nlohmann::json& result) {
  std::printf("%-22s %.3f\n", "ms a prompt", result.at("milliseconds").get<double>());
  if (const auto bytes = result.find("bytes_beyond_the_weights"); bytes != result.end())
    std::printf("%-22s %.3f\n", "GiB beyond the weights", bytes->get<double>() / (1 << 30));
}

void bench(const BenchOptions& options, const Run& run, World& world) {
  std::optional<OutputFile> json, trace;  // a file that can't be written is refused before the work
  if (!options.json.empty()) json.emplace(options.json);
  if (!options.trace.empty()) trace.emplace(options.trace);
  if (options.prompt) {
    nlohmann::json result = measured_prompt(run, options);
    result["device"] = run.training.device;
    print_prompt(result);
    if (json) json->commit({result.dump(1), "\n"});
    return;
  }
  Step step(run, options.step, world);
  if (options.serve) return serve(step);
  nlohmann::json result = measured(step, options.seconds);
  if (const torch::Device device = step.model()->device(); device.is_cuda())
    result["peak_bytes"] = allocated_bytes(device, true);
  if (!world.is_first()) return;
  result["processes"] = world.size();
  result["product_flops_per_second"] =
      world.size() * product_flops_per_second(device_named(run.training.device), dtype_named(run.model.compute_dtype));
  result["device"] = run.training.device;
  print(run, result);
  if (const nlohmann::json products = print_products(options.profile); !products.empty()) result["gemms"] = products;
  if (options.profile) result["operators"] = profiled(step);
  if (trace) write_trace(step, *trace);
  if (json) json->commit({result.dump(1), "\n"});
}

void bench(const BenchOptions& options) {
  Run run = options.run.run();
  options.ranks.run(run.training.device, [&](World& world) {
    if (world.size() > 1 && (options.step.without_optimizer || options.profile || !options.trace.empty()))
      throw std::invalid_argument("processes: expected one for --without-optimizer, --profile and --trace, found " +
                                  std::to_string(world.size()));
    bench(options, run, world);
  });
}

}  // namespace

void add_bench(CLI::App& app, const Place&) {
  auto* command = app.add_subcommand("bench", "Speed of a training step, or of reading a prompt, on random tokens");
  auto options = std::make_shared<BenchOptions>();
  options->run.add_to(*command);
  options->ranks.add_to(*command);
  command->add_option("--seconds", options->seconds, "Time to measure")
      ->check(number_between(0))
      ->capture_default_str();
  command->add_option("--weights", options->step.weights, "safetensors to start from; none: drawn from the seed");
  command
      ->add_option("--gates", options->step.gates,
                   "Forget gates: initial, open or bimodal (seven heads of ten forget within tens of tokens)")
      ->check(one_of({"initial", "open", "bimodal"}))
      ->capture_default_str();
  command->add_option("--json", options->json, "A file for the figures");
  auto* without_optimizer =
      command->add_flag("--without-optimizer", options->step.without_optimizer, "Forward and backward alone");
  auto* profile = command->add_flag("--profile", options->profile, "Print microseconds a token by operator");
  auto* trace = command->add_option("--trace", options->trace,
                                    "A file for a trace of four steps, for chrome://tracing or Perfetto");
  auto* serve = command->add_flag("--serve", options->serve,
                                  "Take steps on command: a line \"go N\" on standard input takes N and prints their "
                                  "seconds, \"losses N\" the loss of each, \"context N\" goes on with sequences of N, "
                                  "\"rest\" gives a GPU's memory back until the next step");
  command
      ->add_flag("--prompt", options->prompt,
                 "In place of a step: one prompt of --context tokens, read as evaluations read it; on a GPU its memory")
      ->excludes(without_optimizer)
      ->excludes(profile)
      ->excludes(trace)
      ->excludes(serve)
      ->excludes(command->get_option("--gpus"))
      ->excludes(command->get_option("--processes"));
  command->footer(
      "Takes the options of lethe train.\n"
      "Example:\n"
      "  lethe bench --size 125m --context 4096 --batch-tokens 32768 --device cuda --set compute_dtype=bfloat16\n"
      "  lethe bench --size 760m --context 16384 --batch-tokens 65536 --gpus 2 --set compute_dtype=bfloat16\n"
      "  lethe bench --prompt --size 125m --context 16384 --batch-tokens 16384 --device cuda --set "
      "compute_dtype=bfloat16");
  command->callback([options] { bench(*options); });
}

}  // namespace lethe
