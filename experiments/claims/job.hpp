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
  std::string corpus = {};           ///< a text in place of the claims' own, see claim_settings; empty: theirs
  std::filesystem::path root = ".";  ///< the checkout: experiments/papers, and the measurements that claims judge
  std::filesystem::path artefacts;   ///< data and models
  std::filesystem::path results;     ///< the folder of the claims' files, see results_folder
  int threads = 0;                   ///< Torch's limit, for the certificate and the timings; 0: Torch's own choice
  std::string command_line;          ///< for the certificate
  /// The runs that are trained: each word is K/N, a label, AskedRun::what or an artefact's name, see asked_runs; empty: all. With a part of the runs
  /// no claim is finished.
  std::vector<std::string> only;
  std::function<void(const JobProgress&)> progress;  ///< may be empty
  std::function<void()> check = {};                  ///< as Study::check
};

/// A run that claims need.
struct AskedRun {
  std::string name;    ///< of its artefact
  std::string source;  ///< the artefact that it converts; empty for a run from a seed
  std::string what;    ///< "FoX (Pro), context 4096, seed 1"
  Run run;
  double work = 0;      ///< FLOPs of its training
  bool is_open = true;  ///< whether its training, or a measurement that an unfinished claim needs, is not finished
};

/// The runs of the experiments that context.only selects, each once, the longest training first. K/N, with 1 ≤ K ≤ N, selects the runs
/// K, K + N, K + 2N, … in this order, finished ones included: N machines with the parts 1/N … N/N train each run once.
///
/// throws  std::invalid_argument for a word that selects nothing
std::vector<AskedRun> asked_runs(const std::vector<Experiment>& selected, const Context& context);

/// In small letters, with a hyphen for what is neither letter nor digit: "nvidia-h200".
std::string with_hyphens(std::string name);

/// "" for the scale "quick", "-<scale>" for the others, and "-<name>" of a text that is not the claims' own: what follows the machine in a folder of
/// results.
std::string suffix_of(const std::string& scale, const std::string& corpus);

/// <results>/<machine><suffix>; at the scales of a GPU, where there is one, its name is the machine's, as in what is judged (judging.hpp).
std::filesystem::path results_folder(const std::filesystem::path& results, const std::string& scale,
                                     const std::string& corpus = "");

/// Trains the models of the experiments (each once; a finished one is read from disk), measures every claim whose inputs
/// changed since its last result, and writes <results>/<claim>.{csv,json} and, where there are curves, <claim>.points.csv.
/// A second call repeats no finished work. With context.only, the models selected there are trained
/// and measured; no claim is written.
///
/// throws  the exceptions of training and measuring, a training's after the claims that don't need it, on a GPU after those trained with it; finished
///         results stay
void run_experiments(const std::vector<Experiment>& selected, const Context& context);

}  // namespace lethe
