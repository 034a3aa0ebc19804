#pragma once
// Training and measuring of claims.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"

namespace lethe {

/// The progress of a job, for the line that the command prints.
struct JobProgress {
  std::string what;         ///< "training FoX (Pro), seed 1", "measuring forgetting_transformer/ablations"
  double share_done = 0;    ///< of the whole job, 0 to 1
  double seconds_left = 0;  ///< of the whole job; NaN until a piece of work has been timed
  Progress training;        ///< of the run in training; steps = 0 while nothing trains
};

/// The options of a job.
struct Context {
  std::string scale = "quick";       ///< a table of every claim's config.toml
  std::filesystem::path root = ".";  ///< the checkout: experiments/papers, and the measurements that claims judge
  std::filesystem::path artefacts;   ///< data and models
  std::filesystem::path results;     ///< the folder of the claims' files, see results_folder
  int threads = 0;                   ///< Torch's limit, for the certificate and the timings; 0: Torch's own choice
  std::string command_line;          ///< for the certificate
  std::function<void(const JobProgress&)> progress;  ///< may be empty
};

/// <results>/<machine> for the scale "quick", <results>/<machine>-<scale> for the others.
std::filesystem::path results_folder(const std::filesystem::path& results, const std::string& scale);

/// Trains the models of the experiments (each once; a finished one is read from disk), measures every claim whose inputs
/// changed since its last result, and writes <results>/<claim>.{csv,json} and, where there are curves, <claim>.points.csv.
/// A second call repeats no finished work.
///
/// throws  the exceptions of training and measuring; finished results stay
void run_experiments(const std::vector<Experiment>& selected, const Context& context);

}  // namespace lethe
