#include "experiments/claims/job.hpp"

#include <ATen/Parallel.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "experiments/certificate.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/config.hpp"

namespace lethe {
namespace {

/// The estimated time of measuring as a share of the training's, used only for the time left.
constexpr double kMeasuringShare = 0.15;
constexpr double kMeasuringAlone = 1e12;  ///< FLOPs counted for the measuring of a claim that trains nothing

/// A hash of this program and our operator library: with another hash every claim is measured again.
std::string program_fingerprint() {
  std::string hashes;
  const auto visit = [](dl_phdr_info* info, size_t, void* hashes) {
    const std::string name = info->dlpi_name;  // empty: the program itself
    if (name.empty() || name.find("liblethe") != std::string::npos)
      *static_cast<std::string*>(hashes) += sha256(read_whole(name.empty() ? "/proc/self/exe" : name));
    return 0;
  };
  dl_iterate_phdr(visit, &hashes);
  return sha256(hashes);
}

/// Data sets by corpus and tokenizer, each read once; an empty data set for a claim that reads no text.
class Datasets {
 public:
  explicit Datasets(std::filesystem::path root) : root_(std::move(root)) {}

  const Dataset& of(const nlohmann::json& settings) {
    if (!settings.contains("training")) return none_;
    const std::string corpus = settings["training"].at("corpus"), tokenizer = settings["training"].at("tokenizer");
    auto& dataset = loaded_[{corpus, tokenizer}];
    if (!dataset) dataset = std::make_unique<Dataset>(prepared_dataset(corpus, tokenizer, root_));
    return *dataset;
  }

 private:
  std::filesystem::path root_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Dataset>> loaded_;
  Dataset none_;
};

/// The share of the work that is done, and the time left at the mean speed; reported by several threads.
class Clock {
 public:
  Clock(double work, std::function<void(const JobProgress&)> report) : work_(work), report_(std::move(report)) {}

  /// Reports the progress of a named piece of the work.
  void begun(const std::string& what, double work, const Progress& training = {}) {
    const std::scoped_lock lock(mutex_);
    begun_[what] = work;
    tell(what, training);
  }

  /// Passes a training's notice on.
  void notice(const Progress& training) {
    const std::scoped_lock lock(mutex_);
    tell("", training);
  }

  /// Reports that a piece of the work is finished.
  void done(const std::string& what, double work) {
    const std::scoped_lock lock(mutex_);
    begun_.erase(what);
    done_ += work;
    tell(what, {});
  }

 private:
  void tell(const std::string& what, const Progress& training) const {
    if (!report_) return;
    double now = done_;
    for (const auto& [_, work] : begun_) now += work;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double left =
        now > 0 ? std::max(0.0, passed.count() * (work_ - now) / now) : std::numeric_limits<double>::quiet_NaN();
    report_({what, now / work_, left, training});
  }

  double work_, done_ = 0;
  std::map<std::string, double> begun_;
  std::function<void(const JobProgress&)> report_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
};

/// A claim to be measured, with all inputs of its result.
struct Task {
  Experiment experiment;
  nlohmann::json settings;
  const Dataset& dataset;
  std::filesystem::path data;  ///< settings["data"] in the checkout; empty for a claim without such a file
  std::vector<Run> runs;
  std::string key;  ///< hash of scale, settings, runs, data, the paper's numbers and the program
};

double training_work(const Run& run) {
  return training_flops_per_token(run.model, run.training.context_length) *
         static_cast<double>(run.training.total_tokens);
}

double training_work(const Task& task) {
  double work = 0;
  for (const Run& run : task.runs) work += training_work(run);
  return work;
}

/// The cost of a claim's measuring, in the units of training: a model shared by several claims is measured for each of them.
double measuring_work(const Task& task) {
  return task.runs.empty() ? kMeasuringAlone : kMeasuringShare * training_work(task);
}

std::filesystem::path base_of(const Task& task, const Context& context) {
  return context.results / task.experiment.claim;
}

bool is_trained(const std::string& name, const std::filesystem::path& models) { return is_finished(models / name); }

bool is_finished(const Task& task, const std::filesystem::path& base, const std::filesystem::path& models) {
  for (const char* ending : {".csv", ".json"})
    if (!std::filesystem::exists(base.string() + ending)) return false;
  try {
    if (read_json(base.string() + ".json").value("key", "") != task.key) return false;
  } catch (const std::exception&) {
    return false;  // a broken result is measured again
  }
  for (const Run& run : task.runs)
    if (!is_trained(artefact_name(run, task.dataset), models)) return false;
  return true;
}

Task make_task(const Experiment& experiment, const Context& context, Datasets& datasets,
               const std::string& fingerprint) {
  nlohmann::json settings = claim_settings(context.root, experiment, context.scale);
  settings.erase("cost");  // words for people
  const Dataset& dataset = datasets.of(settings);
  Task task{experiment, settings, dataset, {}, experiment.runs(settings, dataset.vocabulary()), {}};
  nlohmann::json inputs = {context.scale, settings, read_whole(claim_folder(context.root, experiment) / "paper.csv"),
                           fingerprint, context.threads};
  for (const Run& run : task.runs) inputs.push_back(artefact_name(run, dataset));
  if (settings.contains("data")) {
    task.data = context.root / settings["data"].get<std::string>();
    inputs.push_back(sha256(read_whole(task.data)));
  }
  task.key = sha256(inputs.dump());
  return task;
}

/// The members that a claim adds to the certificate of its records. A model may be older than the claim, and its name is no hash of the
/// program that trained it, so the certificate holds the training's commit.
nlohmann::json details(const Task& task, const Context& context, const std::filesystem::path& models,
                       const Findings& findings) {
  nlohmann::json runs = nlohmann::json::array();
  for (const Run& run : task.runs) {
    const std::string name = artefact_name(run, task.dataset);
    const auto done = read_sealed(models / name / "done.json");
    runs.push_back({{"label", run.label},
                    {"seed", run.training.seed},
                    {"artefact", name},
                    {"commit", done.at("commit")},
                    {"dirty", done.at("dirty")}});
  }
  nlohmann::json dataset;  // null for a claim that reads none
  if (!task.data.empty()) dataset = {{"name", task.settings.at("data")}, {"content", sha256(read_whole(task.data))}};
  else if (!task.dataset.content_hash().empty())
    dataset = {{"name", task.dataset.name()}, {"content", task.dataset.content_hash()}};
  return {{"experiment", task.experiment.paper},
          {"claim", task.experiment.claim},
          {"title", claim_title(context.root, task.experiment)},
          {"scale", context.scale},
          {"threads", context.threads},
          {"settings", task.settings},
          {"dataset", dataset},
          {"runs", runs},
          {"comparisons", findings.comparisons},
          {"verdict", to_string(overall(findings.comparisons))},
          {"key", task.key}};
}

/// Trains the task's absent models. Where the settings give the number of cores of a training, as many trainings run in
/// parallel as fit this machine's cores: small models gain little from a second core.
///
/// throws  the first failure, after the parallel trainings have ended
void train(const Task& task, const std::filesystem::path& models, Clock& clock) {
  const int cores = at::get_num_threads();
  const int cores_a_training = std::clamp(task.settings.value("cores_a_training", cores), 1, cores);
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    at::set_num_threads(cores_a_training);
    for (size_t r; (r = next++) < task.runs.size();) {
      const Run& run = task.runs[r];
      if (is_trained(artefact_name(run, task.dataset), models)) continue;
      const std::string what = "training " + run.label + ", context " + std::to_string(run.training.context_length) +
                               ", seed " + std::to_string(run.training.seed);
      try {
        trained(run, task.dataset, models, [&](const Progress& progress) {
          if (!progress.notice.empty()) return clock.notice(progress);
          const double share = static_cast<double>(progress.step) / static_cast<double>(progress.steps);
          clock.begun(what, share * training_work(run), progress);
        });
        clock.done(what, training_work(run));
      } catch (...) {
        const std::scoped_lock lock(failure_mutex);
        if (!failure) failure = std::current_exception();
        next = task.runs.size();
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int w = 0; w < cores / cores_a_training; ++w) workers.emplace_back(work);
  }
  at::set_num_threads(cores);
  if (failure) std::rethrow_exception(failure);
}

/// Measures a claim after the training of its models, and writes its findings.
void measure(const Task& task, const Context& context, const std::filesystem::path& models, Clock& clock) {
  const std::string what = "measuring " + task.experiment.name();
  const auto tell = [&](double share) { clock.begun(what, share * measuring_work(task)); };
  tell(0);
  Study study{.experiment = task.experiment,
              .settings = task.settings,
              .dataset = task.dataset,
              .data = task.data,
              .paper = read_paper(claim_folder(context.root, task.experiment) / "paper.csv"),
              .trained = {},
              .progress = tell};
  for (const Run& run : task.runs)
    study.trained.push_back(
        trained(run, task.dataset, models, [&](const Progress& progress) { clock.notice(progress); }));
  const Findings findings = task.experiment.measure(study);
  const std::filesystem::path base = base_of(task, context);
  if (!findings.points.empty()) write_points(base.string() + ".points.csv", findings.points);
  write_records(base, findings.records, context.command_line, details(task, context, models, findings));
  clock.done(what, measuring_work(task));
}

}  // namespace

std::filesystem::path results_folder(const std::filesystem::path& results, const std::string& scale) {
  return results / (scale == "quick" ? machine_name() : machine_name() + "-" + scale);
}

void run_experiments(const std::vector<Experiment>& selected, const Context& context) {
  const std::filesystem::path models = context.artefacts / "models";
  Datasets datasets(context.artefacts / "data");
  const std::string fingerprint = program_fingerprint();

  std::vector<Task> tasks;
  std::map<std::string, double> work;  // remaining trainings and measurements, each counted once
  for (const Experiment& experiment : selected) {
    Task task = make_task(experiment, context, datasets, fingerprint);
    if (is_finished(task, base_of(task, context), models)) continue;
    work[experiment.name()] = measuring_work(task);
    for (const Run& run : task.runs)
      if (const auto name = artefact_name(run, task.dataset); !is_trained(name, models))
        work[name] = training_work(run);
    tasks.push_back(std::move(task));
  }
  double all = 0;
  for (const auto& [_, part] : work) all += part;
  Clock clock(all, context.progress);
  if (const std::string reason = missing_commit(context.root); !reason.empty()) clock.notice({.notice = reason});
  for (const Task& task : tasks) {
    train(task, models, clock);
    measure(task, context, models, clock);
  }
}

}  // namespace lethe
