#pragma once
// Training and measuring of claims.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "experiments/claims/claim.hpp"

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

/// results/<machine> for the scale "quick", results/<machine>-<scale> for the others.
std::filesystem::path results_folder(const std::filesystem::path& root, const std::string& scale);

/// Trains what the experiments need (each model once, found again where it is finished), measures every claim whose inputs
/// changed since its last result, and writes <results>/<claim>.{csv,json} and, where there are curves, <claim>.points.csv.
/// A second call repeats nothing that is finished.
///
/// throws  what training and measuring throw; what was finished before stays
void run_experiments(const std::vector<Experiment>& selected, const Context& context);

}  // namespace lethe
