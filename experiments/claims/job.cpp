#include "experiments/claims/job.hpp"

#include <ATen/Parallel.h>
#include <link.h>
#include <torch/cuda.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>

#include "experiments/certificate.hpp"
#include "experiments/claims/clock.hpp"
#include "experiments/claims/datasets.hpp"
#include "experiments/claims/findings_files.hpp"
#include "experiments/claims/runs.hpp"
#include "experiments/claims/settings.hpp"
#include "experiments/data/sha256.hpp"
#include "experiments/files.hpp"
#include "experiments/json_file.hpp"
#include "experiments/models/config.hpp"
#include "experiments/training/conversion.hpp"
#include "experiments/training/machine_limit.hpp"
#include "optimized/torch/gpu.hpp"

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

bool is_measured(const Task& task, const std::filesystem::path& base, const std::filesystem::path& models) {
  for (const char* ending : {".csv", ".json"})
    if (!std::filesystem::exists(base.string() + ending)) return false;
  try {
    if (read_certificate(base).value("key", "") != task.key) return false;
  } catch (const std::exception&) {
    return false;  // a broken result is measured again
  }
  for (const Run& run : task.runs)
    if (!is_trained(artefact_name(run, task.dataset), models)) return false;
  return true;
}

Task make_task(const Experiment& experiment, const Context& context, Datasets& datasets,
               const std::string& fingerprint) {
  nlohmann::json settings = claim_settings(context.root, experiment, context.scale, context.corpus);
  settings.erase("cost");  // text for the reader alone
  const Dataset& dataset = datasets.of(settings);
  Task task{experiment, settings, dataset, {}, experiment.runs(settings, dataset.vocabulary()), {}};
  nlohmann::json inputs = {context.scale, settings, read_whole(claim_folder(context.root, experiment) / "paper.csv"),
                           fingerprint, context.threads};
  for (const Run& run : task.runs) inputs.push_back(artefact_name(run, dataset));
  if (settings.contains("data")) {
    task.data = context.root / settings["data"].get<std::string>();
    if (std::filesystem::exists(task.data)) inputs.push_back(sha256(read_whole(task.data)));
  }
  task.key = sha256(inputs.dump());
  return task;
}

/// The runs of the tasks, each once, the longest training first.
std::vector<AskedRun> runs_of(const std::vector<Task>& tasks, const std::filesystem::path& models) {
  std::map<std::string, AskedRun> by_name;
  for (const Task& task : tasks)
    for (const Run& run : task.runs) {
      const std::string name = artefact_name(run, task.dataset);
      const std::string source = run.conversion ? artefact_name(run.conversion->source, task.dataset) : "";
      by_name.try_emplace(name,
                          AskedRun{name, source, described(run), run, training_work(run), !is_trained(name, models)});
    }
  std::vector<AskedRun> runs;
  for (auto& [_, run] : by_name) runs.push_back(std::move(run));
  std::ranges::stable_sort(runs, std::ranges::greater{}, &AskedRun::work);
  return runs;
}

/// The runs that a word selects, by name.
std::set<std::string> selected_by(const std::string& word, const std::vector<AskedRun>& runs) {
  std::set<std::string> names;
  size_t part = 0, parts = 0;
  char end = 0;
  if (std::sscanf(word.c_str(), "%zu/%zu%c", &part, &parts, &end) == 2) {
    for (size_t r = part - 1; part >= 1 && part <= parts && r < runs.size(); r += parts) names.insert(runs[r].name);
  } else {
    for (const AskedRun& run : runs)
      if (word == run.name || word == run.what || word == run.run.label) names.insert(run.name);
  }
  if (names.empty())
    throw std::invalid_argument(
        "--only: expected K/N with 1 ≤ K ≤ N and at most the " + std::to_string(runs.size()) +
        " runs that the claims ask for, or one's label, name, or label with context and seed, found " + word);
  return names;
}

/// Leaves the runs that `only` selects.
void keep_only(const std::vector<std::string>& only, std::vector<AskedRun>& runs) {
  if (only.empty()) return;
  std::set<std::string> kept;
  for (const std::string& word : only) kept.merge(selected_by(word, runs));
  std::erase_if(runs, [&](const AskedRun& run) { return !kept.contains(run.name); });
}

/// The data of a claim, null for one that reads none.
nlohmann::json dataset_of(const Task& task) {
  if (!task.data.empty() && !std::filesystem::exists(task.data)) return nullptr;
  if (!task.data.empty()) return {{"name", task.settings.at("data")}, {"content", sha256(read_whole(task.data))}};
  if (task.dataset.content_hash().empty()) return nullptr;
  return {{"name", task.dataset.name()}, {"content", task.dataset.content_hash()}};
}

/// The cores of a training of the task's.
int cores_a_training(const Task& task) {
  const int cores = at::get_num_threads();
  return std::clamp(task.settings.value("cores_a_training", cores), 1, cores);
}

/// A training that tasks need.
struct Training {
  const Run* run;
  const Dataset* dataset;
};

/// The absent trainings of the tasks and the sources of conversions, each once, the longest first, so that all cores finish at about the same time.
std::vector<Training> absent_trainings(std::span<const Task> tasks, const std::filesystem::path& models) {
  std::map<std::string, Training> by_name;
  const auto add = [&](const Run& run, const Dataset& dataset) {
    const std::string name = artefact_name(run, dataset);
    return !is_trained(name, models) && by_name.try_emplace(name, Training{&run, &dataset}).second;
  };
  for (const Task& task : tasks)
    for (const Run& run : task.runs)
      if (add(run, task.dataset) && run.conversion && run.conversion->source_data.empty())
        add(run.conversion->source, task.dataset);
  std::vector<Training> trainings;
  for (const auto& [_, training] : by_name) trainings.push_back(training);
  std::ranges::stable_sort(trainings, std::ranges::greater{},
                           [](const Training& training) { return training_work(*training.run); });
  return trainings;
}

/// Trains the absent models of the tasks, as many in parallel as the cores allow: small models gain little from a second core.
///
/// reads   failed: those that an earlier call has tried; they are not tried again
/// writes  failed: with this call's
/// throws  Interrupted; else the first failure, of which all are told, after the other trainings
void train(std::span<const Task> tasks, const std::filesystem::path& models, std::set<std::string>& failed,
           Clock& clock) {
  const int cores = at::get_num_threads(), cores_of_one = cores_a_training(tasks.front());
  std::vector<Training> trainings = absent_trainings(tasks, models);
  std::erase_if(trainings, [&](const Training& training) {
    return failed.contains(artefact_name(*training.run, *training.dataset));
  });
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    at::set_num_threads(cores_of_one);
    for (size_t t; (t = next++) < trainings.size();) {
      const Run& run = *trainings[t].run;
      const std::string what = "training " + described(run);
      try {
        // On CPU cores small models train side by side, and a measurement would stand in their way.
        const TrainingLimit limit = run.training.device == "cpu" ? TrainingLimit{} : training_limit(run);
        trained(run, *trainings[t].dataset, models, [&](Progress progress) {
          if (!progress.notice.empty()) return clock.notice(progress);
          progress.limit = limit;
          const double share = static_cast<double>(progress.step) / static_cast<double>(progress.steps);
          clock.begun(what, share * training_work(run), progress);
        });
        clock.done(what, training_work(run));
      } catch (const Interrupted&) {
        const std::scoped_lock lock(failure_mutex);
        failure = std::current_exception(), next = trainings.size();
      } catch (const std::exception& error) {
        clock.notice({.notice = what + ": " + error.what()});
        const std::scoped_lock lock(failure_mutex);
        failed.insert(artefact_name(run, *trainings[t].dataset));
        if (!failure) failure = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> workers;
    for (int w = 0; w < cores / cores_of_one; ++w) workers.emplace_back(work);
  }
  at::set_num_threads(cores);
  if (failure) std::rethrow_exception(failure);
}

/// How many of the tasks are trained before the first is measured: those that train in parallel, with the same number of cores a training.
size_t trained_together(std::span<const Task> tasks) {
  if (cores_a_training(tasks.front()) == at::get_num_threads()) return 1;
  const auto other = std::ranges::find_if(tasks, [&](const Task& task) {
    return !task.runs.empty() && cores_a_training(task) != cores_a_training(tasks.front());
  });
  return static_cast<size_t>(other - tasks.begin());
}

Study study_of(const Task& task, const Context& context, std::function<void(double)> progress) {
  return {.experiment = task.experiment,
          .settings = task.settings,
          .dataset = task.dataset,
          .data = task.data,
          .paper = read_paper(claim_folder(context.root, task.experiment) / "paper.csv"),
          .trained = {},
          .progress = std::move(progress),
          .check = context.check};
}

/// Computes a claim's measurements of a part of its models, all of them trained.
///
/// returns  false where one is absent and `makes` is not set
bool measure_part(Study study, std::vector<Artefact> part, bool makes) {
  study.trained = std::move(part);
  study.is_part = true;
  study.makes = makes;
  try {
    study.experiment.measure(study);
  } catch (const PartMeasured&) {
    return true;
  } catch (const NotMeasured&) {
    return false;
  }
  throw std::logic_error(study.experiment.name() +
                         ": expected a claim that asks its models in Study::each, found another");
}

/// Measures a claim after the training of its models, and writes its findings; of a part of its models, the measurements alone.
void measure(const Task& task, const Context& context, const std::filesystem::path& models, Clock& clock) {
  const std::string what = "measuring " + task.experiment.name();
  const auto tell = [&](double share) { clock.begun(what, share * measuring_work(task)); };
  tell(0);
  Study study = study_of(task, context, tell);
  for (const Run& run : task.runs)
    study.trained.push_back(
        trained(run, task.dataset, models, [&](const Progress& progress) { clock.notice(progress); }));
  if (!context.only.empty()) {
    measure_part(study, study.trained, true);
    return clock.done(what, measuring_work(task));
  }
  write_findings(study, task.experiment.measure(study), context, dataset_of(task), task.key);
  clock.done(what, measuring_work(task));
}

/// Whether a trained run lacks a measurement that a claim needs.
bool lacks_measurements(const AskedRun& asked, const Task& task, const Context& context,
                        const std::filesystem::path& models) {
  if (is_measured(task, base_of(task, context), models)) return false;
  std::vector<Artefact> part;
  for (const Run& run : task.runs)
    if (artefact_name(run, task.dataset) == asked.name) part.push_back({models / asked.name, run});
  return !part.empty() && !measure_part(study_of(task, context, [](double) {}), part, false);
}

std::filesystem::path models_folder(const Context& context) { return context.artefacts / "models"; }
std::filesystem::path data_folder(const Context& context) { return context.artefacts / "data"; }

std::vector<Task> make_tasks(const std::vector<Experiment>& selected, const Context& context, Datasets& datasets) {
  const std::string fingerprint = program_fingerprint();
  std::vector<Task> tasks;
  for (const Experiment& experiment : selected) tasks.push_back(make_task(experiment, context, datasets, fingerprint));
  return tasks;
}

}  // namespace

std::string with_hyphens(std::string name) {
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(c)) : '-';
  return name;
}

std::string suffix_of(const std::string& scale, const std::string& corpus) {
  const std::string suffix = scale == "quick" ? "" : "-" + scale;
  return corpus.empty() ? suffix
                        : suffix + "-" + with_hyphens((std::filesystem::path(corpus) / "").parent_path().filename());
}

std::filesystem::path results_folder(const std::filesystem::path& results, const std::string& scale,
                                     const std::string& corpus) {
  const bool is_of_a_gpu = (scale == "gpu" || scale == "paper") && torch::cuda::is_available();
  return results / ((is_of_a_gpu ? with_hyphens(gpu(torch::kCUDA).name) : machine_name()) + suffix_of(scale, corpus));
}

std::vector<AskedRun> asked_runs(const std::vector<Experiment>& selected, const Context& context) {
  const std::filesystem::path models = models_folder(context);
  Datasets datasets(data_folder(context));
  const std::vector<Task> tasks = make_tasks(selected, context, datasets);
  std::vector<AskedRun> runs = runs_of(tasks, models);
  keep_only(context.only, runs);
  for (AskedRun& run : runs)
    run.is_open = run.is_open || std::ranges::any_of(tasks, [&](const Task& task) {
                    return lacks_measurements(run, task, context, models);
                  });
  return runs;
}

void run_experiments(const std::vector<Experiment>& selected, const Context& context) {
  const std::filesystem::path models = models_folder(context);
  Datasets datasets(data_folder(context));
  std::vector<Task> tasks;
  std::vector<Task> all_tasks = make_tasks(selected, context, datasets);
  std::vector<AskedRun> runs = runs_of(all_tasks, models);
  keep_only(context.only, runs);
  for (Task& task : all_tasks) {
    if (is_measured(task, base_of(task, context), models)) continue;
    std::erase_if(task.runs, [&](const Run& run) {
      return std::ranges::count(runs, artefact_name(run, task.dataset), &AskedRun::name) == 0;
    });
    if (context.only.empty() || !task.runs.empty()) tasks.push_back(std::move(task));
  }

  double all = 0;
  for (const Task& task : tasks) all += measuring_work(task);
  for (const Training& training : absent_trainings(tasks, models)) all += training_work(*training.run);
  Clock clock(all, context.progress);
  if (const std::string reason = missing_commit(context.root); !reason.empty()) clock.notice({.notice = reason});
  std::exception_ptr failure;
  std::set<std::string> failed;
  for (std::span<const Task> left = tasks; !left.empty();) {
    const std::span<const Task> group = left.first(trained_together(left));
    try {
      train(group, models, failed, clock);
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    for (const Task& task : group)
      if (absent_trainings({&task, 1}, models).empty()) measure(task, context, models, clock);
    left = left.subspan(group.size());
    // A device may fail all that comes after an error.
    if (failure && !group.front().runs.empty() && group.front().runs.front().training.device != "cpu") break;
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace lethe
