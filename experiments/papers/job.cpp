#include <link.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>

#include "experiments/data/sha256.hpp"
#include "experiments/models/config.hpp"
#include "experiments/papers/registry.hpp"
#include "experiments/training/files.hpp"

namespace lethe {
namespace {

/// Measuring takes about this share of the time that training takes: only the time left rests on it.
constexpr double kMeasuringShare = 0.15;

/// A hash of this program and our operator library: what other code has measured is measured again.
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

/// Data sets by corpus and tokenizer, each read once.
class Datasets {
 public:
  explicit Datasets(std::filesystem::path root) : root_(std::move(root)) {}

  const Dataset& of(const std::string& corpus, const std::string& tokenizer) {
    auto& dataset = loaded_[{corpus, tokenizer}];
    if (!dataset) dataset = std::make_unique<Dataset>(prepared_dataset(corpus, tokenizer, root_));
    return *dataset;
  }

 private:
  std::filesystem::path root_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Dataset>> loaded_;
};

/// The share of the work that is done, and the time left at the speed so far.
class Clock {
 public:
  Clock(double work, std::function<void(const JobProgress&)> report) : work_(work), report_(std::move(report)) {}

  void done(double work) { done_ += work; }

  /// reads  begun: of the work since the last call of done
  void tell(const std::string& what, double begun, const Progress& training = {}) const {
    if (!report_) return;
    const double now = done_ + begun;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double unknown = work_ > 0 ? std::numeric_limits<double>::quiet_NaN() : 0.0;
    const double left = now > 0 ? std::max(0.0, passed.count() * (work_ - now) / now) : unknown;
    report_({what, work_ > 0 ? now / work_ : 1.0, left, training});
  }

 private:
  double work_, done_ = 0;
  std::function<void(const JobProgress&)> report_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// A claim that has still to be measured, with everything that its result depends on.
struct Task {
  Experiment experiment;
  nlohmann::json settings;
  const Dataset* dataset;
  std::vector<Run> runs;
  std::string key;  ///< hash of scale, settings, runs, the paper's numbers and the program
};

double training_work(const Run& run) {
  return training_flops_per_token(run.model, run.training.context_length) *
         static_cast<double>(run.training.total_tokens);
}

bool is_trained(const std::string& name, const std::filesystem::path& models) {
  return std::filesystem::exists(models / name / "done.json");
}

bool is_finished(const Task& task, const std::filesystem::path& base, const std::filesystem::path& models) {
  for (const char* ending : {".csv", ".json"})
    if (!std::filesystem::exists(base.string() + ending)) return false;
  if (nlohmann::json::parse(read_whole(base.string() + ".json")).value("key", "") != task.key) return false;
  for (const Run& run : task.runs)
    if (!is_trained(artefact_name(run, *task.dataset), models)) return false;
  return true;
}

Task make_task(const Experiment& experiment, const Context& context, Datasets& datasets,
               const std::string& fingerprint) {
  Task task{experiment, claim_settings(context.root, experiment, context.scale), nullptr, {}, {}};
  const nlohmann::json& training = task.settings.at("training");
  task.dataset = &datasets.of(training.at("corpus"), training.at("tokenizer"));
  task.runs = experiment.runs(task.settings, task.dataset->vocabulary());
  nlohmann::json inputs = {context.scale, task.settings, read_whole(claim_folder(context.root, experiment) / "paper.csv"),
                           fingerprint, context.threads};
  for (const Run& run : task.runs) inputs.push_back(artefact_name(run, *task.dataset));
  task.key = sha256(inputs.dump());
  return task;
}

/// The certificate's part that a claim adds to that of every record.
nlohmann::json details(const Task& task, const Context& context, const Findings& findings) {
  nlohmann::json runs = nlohmann::json::array();
  for (const Run& run : task.runs)
    runs.push_back(
        {{"label", run.label}, {"seed", run.training.seed}, {"artefact", artefact_name(run, *task.dataset)}});
  return {{"experiment", task.experiment.paper},
          {"claim", task.experiment.claim},
          {"title", task.experiment.title},
          {"scale", context.scale},
          {"threads", context.threads},
          {"settings", task.settings},
          {"dataset", {{"name", task.dataset->name()}, {"content", task.dataset->content_hash()}}},
          {"runs", runs},
          {"comparisons", findings.comparisons},
          {"verdict", to_string(overall(findings.comparisons))},
          {"key", task.key}};
}

}  // namespace

void run_experiments(const std::vector<Experiment>& selected, const Context& context) {
  const std::filesystem::path models = context.root / "artefacts" / "models";
  const auto base_of = [&](const Task& task) { return context.results / task.experiment.claim; };
  Datasets datasets(context.root / "artefacts" / "data");
  const std::string fingerprint = program_fingerprint();

  std::vector<Task> tasks;
  std::map<std::string, double> work_of;  // of each model that is still to be trained
  double all_training = 0;                // of every model that the tasks read, trained or not
  for (const Experiment& experiment : selected) {
    Task task = make_task(experiment, context, datasets, fingerprint);
    if (is_finished(task, base_of(task), models)) continue;
    for (const Run& run : task.runs) {
      const std::string name = artefact_name(run, *task.dataset);
      all_training += training_work(run);
      if (!is_trained(name, models)) work_of[name] = training_work(run);
    }
    tasks.push_back(std::move(task));
  }
  double work = kMeasuringShare * all_training;
  for (const auto& [_, training] : work_of) work += training;
  Clock clock(work, context.progress);

  for (const Task& task : tasks) {
    const auto artefact = [&](const Run& run) {
      const std::string name = artefact_name(run, *task.dataset);
      const double training = work_of.contains(name) ? work_of[name] : 0;
      const std::string what = "training " + run.label + ", seed " + std::to_string(run.training.seed);
      Artefact made = trained(run, *task.dataset, models, [&](const Progress& progress) {
        clock.tell(what, training * static_cast<double>(progress.step) / static_cast<double>(progress.steps), progress);
      });
      clock.done(training);
      work_of.erase(name);
      return made;
    };
    double own_training = 0;
    for (const Run& run : task.runs) {
      artefact(run);
      own_training += training_work(run);
    }
    const double measuring = kMeasuringShare * own_training;
    const std::string what = "measuring " + task.experiment.name();
    const auto tell = [&](double share) { clock.tell(what, measuring * share); };
    tell(0);
    const Study study{.experiment = task.experiment,
                      .settings = task.settings,
                      .dataset = *task.dataset,
                      .paper = read_paper(claim_folder(context.root, task.experiment) / "paper.csv"),
                      .artefact = artefact,
                      .progress = tell};
    const Findings findings = task.experiment.measure(study);
    clock.done(measuring);

    const std::filesystem::path base = base_of(task);
    if (!findings.points.empty()) write_points(base.string() + ".points.csv", findings.points);
    write_records(base, findings.records, context.command_line, details(task, context, findings));
  }
  clock.tell("finished", 0);
}

}  // namespace lethe
