#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "experiments/claims/job.hpp"
#include "experiments/claims/registry.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/commands/checks.hpp"
#include "experiments/commands/commands.hpp"
#include "experiments/commands/deadline.hpp"
#include "experiments/commands/farm.hpp"
#include "experiments/commands/folders.hpp"
#include "experiments/commands/progress_line.hpp"
#include "experiments/data/run_program.hpp"
#include "experiments/training/training_log.hpp"

namespace lethe {
namespace {

struct SuiteOptions {
  std::vector<std::string> experiments, only;
  std::string scale = "quick", corpus, results, worker;
  int gpus = 0, processes = 0;
  Deadline deadline;
};

std::string described(const JobProgress& progress) {
  char text[200];
  std::snprintf(text, sizeof text, "%3.0f %%, %s left: %s", 100 * progress.share_done,
                duration(progress.seconds_left).c_str(), progress.what.c_str());
  std::string line = text;
  if (progress.training.steps > 0) line += ", " + described(progress.training);
  return line;
}

/// The tokens that a training has seen, by its log.
double tokens_logged(const std::filesystem::path& folder) {
  const nlohmann::json tokens = last_logged(folder).value("tokens", nlohmann::json(0));
  return tokens.is_number() ? tokens.get<double>() : 0;
}

/// The progress of a farm, from the logs of its runs.
class FarmProgress {
 public:
  FarmProgress(const std::vector<AskedRun>& runs, std::filesystem::path models)
      : runs_(runs), models_(std::move(models)), begun_at_(share_done()) {}

  JobProgress of(const std::vector<AskedRun>& in_progress) const {
    std::string what = "training ";
    for (const AskedRun& run : in_progress) what += (&run == in_progress.data() ? "" : "; ") + run.what;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double share = share_done();
    return {what, share, passed.count() * (1 - share) / (share - begun_at_), {}};
  }

 private:
  double share_done() const {
    double done = 0, all = 0;
    for (const AskedRun& run : runs_) {
      const auto tokens = static_cast<double>(run.run.training.steps() * run.run.training.batch_tokens);
      done += run.work * std::min(1.0, tokens_logged(models_ / run.name) / tokens);
      all += run.work;
    }
    return all > 0 ? done / all : 1;
  }

  const std::vector<AskedRun>& runs_;
  std::filesystem::path models_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double begun_at_;
};

/// Trains the open runs, a process each.
///
/// throws  Interrupted where the deadline left some of them open; std::runtime_error where some failed
void farm_out(const SuiteOptions& options, const Context& context, const std::filesystem::path& call_folder,
              const Place& place, ProgressLine& line) {
  std::vector<AskedRun> runs = asked_runs(select_experiments(options.experiments), context);
  std::erase_if(runs, [](const AskedRun& run) { return !run.is_open; });
  for (const AskedRun& run : runs)
    if (options.gpus > 0 && run.run.training.device == "cpu")
      throw std::invalid_argument("--gpus: expected a scale whose runs have the device cuda, found " + options.scale +
                                  "; --processes shares out CPU cores");
  const int count = std::max(options.gpus, options.processes);
  if (options.gpus == 0) expect_cores(count);
  const auto places = options.gpus > 0 ? visible_gpus(count) : std::vector<std::string>(static_cast<size_t>(count));
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = place.threads > 0 ? place.threads : std::max(1, cores / count);

  const auto command = [&](const AskedRun& run, const std::string& gpu) {
    std::vector<std::string> arguments = {"env", "--chdir=" + call_folder.string()};
    if (options.gpus > 0) arguments.push_back("CUDA_VISIBLE_DEVICES=" + gpu);
    bool has_threads = false;  // given once: twice would be refused
    for (const std::string& argument : own_arguments()) {
      arguments.push_back(argument);
      has_threads = has_threads || argument == "--threads" || argument.starts_with("--threads=");
    }
    arguments.insert(arguments.end(), {"--worker", run.name});
    if (!has_threads) arguments.insert(arguments.end(), {"--threads", std::to_string(threads)});
    if (const double left = options.deadline.left(); std::isfinite(left))
      arguments.insert(arguments.end(), {"--until", std::to_string(left)});
    return arguments;
  };
  const FarmProgress progress(runs, place.models());
  const Harvest harvest = farm(runs, places, options.deadline, command, [&](const std::vector<AskedRun>& in_progress) {
    line.show(described(progress.of(in_progress)));
  });
  const auto listed = [&](const std::vector<std::string>& some) {
    return std::to_string(some.size()) + " of " + std::to_string(runs.size()) + " runs (" +
           std::accumulate(std::next(some.begin()), some.end(), some.front(),
                           [](const std::string& all, const std::string& one) { return all + "; " + one; }) +
           ")";
  };
  if (!harvest.failed.empty()) throw std::runtime_error("failed: " + listed(harvest.failed));
  if (!harvest.continues.empty())
    throw Interrupted(Interrupted::kDeadline, "continues: " + listed(harvest.continues) + "; the same call goes on");
}

void run(const SuiteOptions& options, const Place& place) {
  const bool is_worker = !options.worker.empty();
  if (is_worker) prctl(PR_SET_PDEATHSIG, SIGTERM);  // a worker doesn't outlive its farm
  const auto selected = select_experiments(options.experiments);
  Context context;
  context.scale = options.scale;
  context.corpus = corpus_of(options.corpus, selected, options.scale, place);
  context.root = place.suite();
  context.artefacts = place.root / "artefacts";
  context.results =
      results_folder(options.results.empty() ? place.results() : std::filesystem::absolute(options.results),
                     options.scale, context.corpus);
  context.threads = place.threads;
  context.command_line = place.command_line;
  context.only = is_worker ? std::vector{options.worker} : options.only;
  if (context.only.empty()) expect_folder_to_write("results", context.results);
  const std::filesystem::path call_folder = std::filesystem::current_path();
  std::filesystem::current_path(place.root);  // a corpus in config.toml is a path below it
  const bool is_farm = !is_worker && std::max(options.gpus, options.processes) > 0;
  if (is_farm) {
    ProgressLine line(Deadline{});  // the workers end at the deadline, and the farm with them
    farm_out(options, context, call_folder, place, line);
  }
  if (!is_farm || options.only.empty()) {
    ProgressLine line(options.deadline, is_worker);
    context.progress = [&](const JobProgress& progress) {
      if (progress.training.notice.empty()) line.show(described(progress));
      else line.show(progress.training);
    };
    context.check = StopSignals::check;  // the deadline ends a job between measurements
    run_experiments(selected, context);
  }
  if (!is_worker) std::printf("%s\n", context.only.empty() ? context.results.c_str() : place.models().c_str());
}

}  // namespace

void add_scale(CLI::App& command, std::string& scale) {
  command
      .add_option("--scale", scale,
                  "smoke (a minute: does it run at all), quick (two cores, minutes), gpu (one GPU, a day) or paper "
                  "(the papers' own)")
      ->check(one_of({"smoke", "quick", "gpu", "paper"}))
      ->capture_default_str();
}

void add_corpus(CLI::App& command, std::string& corpus) {
  command
      .add_option("--corpus", corpus,
                  "Another text than the claims' own, under their rules: a corpus, a dataset's folder or a text, as "
                  "lethe train's; results have its name")
      ->default_str("that of config.toml");
}

std::string corpus_of(const std::string& given, const std::vector<Experiment>& selected, const std::string& scale,
                      const Place& place) {
  if (given.empty()) return given;
  for (const Experiment& experiment : selected) claim_settings(place.suite(), experiment, scale, given);
  namespace fs = std::filesystem;
  if (given.find('/') == std::string::npos && !fs::exists(given)) return given;  // a name
  const auto whole_of = [](const fs::path& path) {
    const fs::path whole = fs::absolute(path).lexically_normal();
    return whole.has_filename() ? whole : whole.parent_path();
  };
  const fs::path whole = whole_of(given), below = whole.lexically_relative(whole_of(place.root));
  return below.empty() || *below.begin() == ".." ? whole : below;
}

void add_claims(CLI::App& command, std::vector<std::string>& claims) {
  std::vector<std::string> names;
  for (const Experiment& experiment : experiments())
    for (const std::string& name : {experiment.claim, experiment.paper, experiment.name()}) names.push_back(name);
  const auto unknown = [names](std::string& name) {
    const bool is_known = std::ranges::count(names, name) > 0;
    return is_known ? "" : "expected a paper, a claim or paper/claim, found " + name + suggestion(name, names);
  };
  command.add_option("experiments", claims, "paper/claim, paper or claim; none: all (lethe list shows them)")
      ->check(CLI::Validator(unknown, ""));
}

void add_run(CLI::App& app, const Place& place) {
  auto* command = app.add_subcommand("run", "Train what claims need, and measure them");
  auto options = std::make_shared<SuiteOptions>();
  add_claims(*command, options->experiments);
  add_scale(*command, options->scale);
  add_corpus(*command, options->corpus);
  command->add_option("--results", options->results, "The folder of results, one folder a machine below it")
      ->default_str("artefacts/results, which git ignores");
  auto* gpus = command->add_option("--gpus", options->gpus, "Train on so many GPUs, a run and a process on each")
                   ->check(number_between(1, 1024));
  command->add_option("--processes", options->processes, "Train so many runs at once on CPU cores, a process each")
      ->check(number_between(1, 1024))
      ->excludes(gpus);
  command->add_option(
      "--only", options->only,
      "Train a part of the runs, and finish no claim: K/N, the K-th of N parts, or labels, with context and "
      "seed or without, or names");
  command->add_option("--worker", options->worker)->group("");  // of a farm: the name of its run
  options->deadline.add_to(*command);
  command->footer(
      "A second call repeats nothing that is finished, and goes on where a first was stopped.\n"
      "Examples:\n"
      "  lethe run\n"
      "  lethe run adaptive_computation_pruning\n"
      "  lethe run ablations tolerance\n"
      "  lethe run ablations --scale gpu --gpus 8 --until 3000\n"
      "  lethe run training_context --scale gpu --only \"Transformer (Pro) at 16384, context 16384, seed 0\"\n"
      "  lethe run length_extrapolation --scale gpu --corpus artefacts/data/linux-gpt2\n"
      "  lethe run ablations --scale gpu --gpus 1 --only 3/6     # the third of six machines");
  command->callback([options, &place] { run(*options, place); });
}

}  // namespace lethe
