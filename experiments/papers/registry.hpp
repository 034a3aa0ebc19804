#pragma once
// The claims of the papers that this project measures: one row each.

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/data/dataset.hpp"
#include "experiments/papers/verdict.hpp"
#include "experiments/record.hpp"
#include "experiments/training/training.hpp"

namespace lethe {

/// Where a job stands, for the line that the command prints.
struct JobProgress {
  std::string what;         ///< "training FoX (Pro), seed 1", "measuring forgetting_transformer/ablations"
  double share_done = 0;    ///< of the whole job, 0 to 1
  double seconds_left = 0;  ///< of the whole job; NaN until something has been timed
  Progress training;        ///< of the run in training; steps = 0 while nothing trains
};

/// What a job runs with.
struct Context {
  std::string scale = "quick";       ///< a table of every claim's config.toml
  std::filesystem::path root = ".";  ///< the checkout: experiments/papers, artefacts/
  std::filesystem::path results;     ///< where the claims' files go, see results_folder
  int threads = 0;                   ///< that Torch may use, for the certificate and the timings; 0: its own choice
  std::string command_line;          ///< for the certificate
  std::function<void(const JobProgress&)> progress;  ///< may be empty
};

/// What a claim found.
struct Findings {
  std::vector<Record> records;
  std::vector<Point> points;  ///< curves and matrices for the plots
  std::vector<Comparison> comparisons;
};

struct Study;

/// A claim: what has to be trained for it, and how it is measured.
struct Experiment {
  std::string paper, claim, title;
  /// None where nothing is trained; then config.toml needs neither a model nor a training, and `vocabulary` is 0.
  std::vector<Run> (*runs)(const nlohmann::json& settings, int64_t vocabulary);
  Findings (*measure)(const Study& study);

  std::string name() const { return paper + "/" + claim; }
};

/// What a claim is measured with.
struct Study {
  const Experiment& experiment;
  const nlohmann::json& settings;  ///< the scale's table of config.toml
  const Dataset& dataset;          ///< empty for a claim without training
  std::vector<PaperRecord> paper;
  std::function<Artefact(const Run&)> artefact;  ///< of a run that `runs` listed: trained by now
  std::function<void(double)> progress;          ///< takes the share of the measuring that is done

  LanguageModel model(const Run& run) const { return load_model(artefact(run)); }
};

/// All claims, in the order of the papers.
const std::vector<Experiment>& experiments();

/// The experiments that names select: "paper/claim", "paper", "claim"; all of them where names is empty.
///
/// throws  std::invalid_argument naming the word that selects nothing
std::vector<Experiment> select_experiments(const std::vector<std::string>& names);

/// The folder of a claim in the checkout: README.md, paper.csv, config.toml.
std::filesystem::path claim_folder(const std::filesystem::path& root, const Experiment& experiment);

/// The table of `scale` in the claim's config.toml as JSON; a table `base = "../other/config.toml"` is the other file's table of
/// the same scale, over which this one is laid.
///
/// throws  std::invalid_argument naming the file, and the scales that it has
nlohmann::json claim_settings(const std::filesystem::path& root, const Experiment& experiment,
                              const std::string& scale);

/// What the experiment costs at a scale, in words: config.toml's `cost`.
std::string cost(const std::filesystem::path& root, const Experiment& experiment, const std::string& scale);

/// results/<machine> for the scale "quick", results/<machine>-<scale> for the others.
std::filesystem::path results_folder(const std::filesystem::path& root, const std::string& scale);

/// Trains what the experiments need (each model once, found again where it is finished), measures every claim whose inputs
/// changed since its last result, and writes <results>/<claim>.{csv,json} and, where there are curves, <claim>.points.csv.
/// A second call repeats nothing that is finished.
///
/// throws  what training and measuring throw; what was finished before stays
void run_experiments(const std::vector<Experiment>& selected, const Context& context);

}  // namespace lethe
