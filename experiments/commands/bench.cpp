#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "experiments/commands/bench_model.hpp"
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
#include "experiments/training/trainer.hpp"
#include "optimized/torch/products.hpp"

namespace lethe {
namespace {

using torch::Tensor;
using Clock = std::chrono::steady_clock;

struct BenchOptions {
  RunOptions run;
  RankOptions ranks;
  double seconds = 10;
  std::string weights, gates = "initial", json, trace;
  bool serve = false, without_optimizer = false, profile = false, prompt = false;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr const char* kText =
    "text";  // [n·B,T+1] int64, in the file of the weights: n batches, which the steps take in turn

// The training step on random tokens, the same in every step and on every rank.
class Step {
 public:
  Step(const Run& run, const BenchOptions& options, World& world)
      : run_(run), world_(world), with_optimizer_(!options.without_optimizer),
        model_(run.model, device_named(run.training.device), run.training.seed),
        exchange_(prepared(options), world, run.training.zero), optimizer_(model_->flat(), run.training, &exchange_) {
    const TrainingConfig& training = run.training;
    const BatchShare share{world.rank(), world.size()};
    const int64_t sequences = share.micro_sequences(training), length = training.context_length + 1;
    micro_batches_ = share.sequences(training) / sequences;
    torch::manual_seed(training.seed);
    const auto given = file_.tensors.find(kText);
    const Tensor text = given != file_.tensors.end()
                            ? given->second
                            : torch::randint(run.model.vocabulary, {sequences, length}, torch::kInt64);
    if (text.dim() != 2 || text.size(0) < 1 || text.size(0) % sequences != 0 || text.size(1) != length ||
        text.scalar_type() != torch::kInt64)
      throw std::invalid_argument(options.weights + ": expected text [n·" + std::to_string(sequences) + "," +
                                  std::to_string(length) + "] int64, found another shape or type");
    for (const Tensor& one : text.to(model_->device()).split(sequences))
      batches_.push_back({one.narrow(1, 0, training.context_length).contiguous(),
                          one.narrow(1, 1, training.context_length).contiguous()});
  }

  // Takes `count` steps and waits for the device.
  void take(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const Dataset::Batch batch = batch_of_next_step();
      ++taken_;
      if (with_optimizer_) {
        figures_ = take_step(
            model_, optimizer_, run_.training.learning_rate, micro_batches_, [&](int64_t) { return batch; },
            &exchange_);
      } else {
        for (int64_t micro = 0; micro < micro_batches_; ++micro)
          losses_ = model_->accumulate_gradients(batch.tokens, batch.labels, 1.0 / static_cast<double>(tokens()));
      }
    }
    wait();
  }
  void wait() const {
    if (model_->device().is_cuda()) torch::cuda::synchronize();
  }
  // Waits for all ranks: their clocks start together.
  void meet() {
    world_.sum(torch::zeros(1, torch::TensorOptions(model_->device()))).wait();
    wait();
  }
  World& world() { return world_; }
  int64_t tokens() const { return run_.training.batch_tokens; }
  // Loss and gradient norm of the next step, with the weights as they are.
  std::pair<double, double> figures() {
    model_->flat().gradient.zero_();
    exchange_.begin();
    const Dataset::Batch& batch = batch_of_next_step();
    const auto answered = static_cast<double>(batch.tokens.numel() * world_.size());
    const Tensor losses = model_->accumulate_gradients(batch.tokens, batch.labels, 1 / answered);
    exchange_.finish();
    return {losses.mean().item<double>(), optimizer_.gradient_norm().item<double>()};
  }
  // Of the last step.
  double loss() const { return figures_.loss.item<double>(); }
  LanguageModel& model() { return model_; }

 private:
  FlatParameters& prepared(const BenchOptions& options) {
    if (!options.weights.empty()) read_weights(model_, file_ = read_safetensors(options.weights), options.weights);
    set_gates(model_, options.gates);
    model_->set_recompute(recompute_named(run_.training.recompute));
    measure_products(run_.training.gemms == "measured");
    return model_->flatten(true, world_.size());
  }
  const Dataset::Batch& batch_of_next_step() const { return batches_[taken_ % batches_.size()]; }

  Run run_;
  World& world_;
  bool with_optimizer_;
  Safetensors file_;
  LanguageModel model_;
  GradientExchange exchange_;
  AdamW optimizer_;
  int64_t micro_batches_ = 1;
  std::vector<Dataset::Batch> batches_;
  size_t taken_ = 0;  // steps
  StepFigures figures_;
  Tensor losses_;
};

// Bytes that the allocator has given out on a GPU: now, or at most since resetPeakStats.
int64_t allocated_bytes(const torch::Device& device, bool peak) {
  constexpr size_t kAggregate = 0;
  const auto of_device = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& stats = of_device.allocated_bytes[kAggregate];
  return peak ? stats.peak : stats.current;
}

// Seconds of `count` steps that all ranks take.
double timed(Step& step, int64_t count) {
  step.meet();
  const auto start = Clock::now();
  step.take(count);
  return seconds_since(start);
}

nlohmann::json measured(Step& step, double seconds) {
  constexpr int64_t kTrial = 2;
  step.take(3);
  const double trial = timed(step, kTrial) / kTrial;
  const int64_t steps = step.world().from_first(std::max<int64_t>(1, std::llround(seconds / trial)));
  const double elapsed = timed(step, steps), tokens = static_cast<double>(step.tokens() * steps);
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
  std::printf("%-22s %.1f\n%-22s %.1f\n", "TFLOP/s", rate / 1e12, "% of a large product",
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

// On standard input "go N" takes N steps and prints their seconds, "losses N" prints the loss of each; the end of the input ends the program.
void serve(Step& step) {
  const auto [loss, norm] = step.figures();  // of the weights as they were read
  step.take(3);
  if (!step.world().is_first()) {
    while (const int64_t count = step.world().from_first()) timed(step, count);
    return;
  }
  nlohmann::json ready = {{"loss", loss}, {"gradient_norm", norm}, {"tokens", step.tokens()}};
  if (const torch::Device device = step.model()->device(); device.is_cuda())
    ready["peak_bytes"] = allocated_bytes(device, true);
  std::cout << "ready " << ready.dump() << std::endl;
  std::string word;
  for (int64_t count; std::cin >> word >> count && (word == "go" || word == "losses") && count > 0;) {
    if (word == "go") {
      std::cout << timed(step, step.world().from_first(count)) << std::endl;
      continue;
    }
    nlohmann::json losses = nlohmann::json::array();
    for (; count > 0; --count) {
      timed(step, step.world().from_first(1));
      losses.push_back(step.loss());
    }
    std::cout << losses.dump() << std::endl;
  }
  step.world().from_first(0);
}

// Reading one prompt of `context` random tokens as an evaluation does: loss and hit of each. On a GPU its memory too.
nlohmann::json measured_prompt(const Run& run, const BenchOptions& options) {
  LanguageModel model(run.model, device_named(run.training.device), run.training.seed);
  if (!options.weights.empty()) read_weights(model, read_safetensors(options.weights), options.weights);
  set_gates(model, options.gates);
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
  const auto start = Clock::now();
  for (; count == 0 || seconds_since(start) < options.seconds; ++count) once();  // each ends on the CPU
  result["prompts"] = count;
  result["milliseconds"] = seconds_since(start) / static_cast<double>(count) * 1e3;
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
  Step step(run, options, world);
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
    if (world.size() > 1 && (options.without_optimizer || options.profile || !options.trace.empty()))
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
  command->add_option("--weights", options->weights, "safetensors to start from; none: drawn from the seed");
  command
      ->add_option("--gates", options->gates,
                   "Forget gates: initial, open or bimodal (seven heads of ten forget within tens of tokens)")
      ->check(one_of({"initial", "open", "bimodal"}))
      ->capture_default_str();
  command->add_option("--json", options->json, "A file for the figures");
  auto* without_optimizer =
      command->add_flag("--without-optimizer", options->without_optimizer, "Forward and backward alone");
  auto* profile = command->add_flag("--profile", options->profile, "Print microseconds a token by operator");
  auto* trace = command->add_option("--trace", options->trace,
                                    "A file for a trace of four steps, for chrome://tracing or Perfetto");
  auto* serve = command->add_flag("--serve", options->serve,
                                  "Take steps on command: a line \"go N\" on standard input takes N and prints their "
                                  "seconds, \"losses N\" the loss of each");
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
